"""A test file runs itself again with Triton's interpreter, which is chosen before triton loads."""

import os
import subprocess
import sys

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"


def run_interpreted(file: str, *options: str) -> None:
    """Fail unless the file's tests pass where kernels are interpreted. options: of pytest."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-x", file, *options]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout, done.stdout
