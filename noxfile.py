"""The house's commands, each an install plus one `python -m` line.

Settings, among those of conformance/settings.py (environment variable or key of [tool.smla]):
  SMLA_NOX_TARGET  cpu or gpu: what to install for, instead of asking the driver
  SMLA_TORCH_INDEX an index of torch's CPU wheels; empty: none, take what pip's own settings give
"""

import http.client
import json
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from conformance import driver, settings  # noqa: E402

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests", "conformance", "mutants", "fuzz-mutants"]

CPU_CONSTRAINTS = "constraints/cpu.txt"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 3.0
SUITE_FAILED = 3  # exit code: neither conforms (0), nor does not (1), nor incomplete (2)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests of the house itself; some need chromium, sshd or redis-server."""
    install_suite(session, extras=("test", "bundle", "browser", "redis"))
    run_module(session, "pytest", "-n", "auto", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Prove the backend right; exit code 0 conforms, 1 does not, 2 incomplete, 3 suite failed."""
    verdict(session, "conformance", "run", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Prove the suite: every deliberate fault must be found."""
    verdict(session, "conformance", "mutants", *session.posargs)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Play serving histories with faults in them: nox -s fuzz -- --minutes 10."""
    verdict(session, "fuzz", "run", *session.posargs)


@nox.session(name="fuzz-mutants")
def fuzz_mutants(session: nox.Session) -> None:
    """Prove the fuzzer: drawn histories must find every fault that no single step shows."""
    verdict(session, "fuzz", "mutants", *session.posargs)


@nox.session(default=False)
def golden(session: nox.Session) -> None:
    """Check the golden set; exit code 0 holds, 1 differs, 3 broken or asked wrongly."""
    verdict(session, "golden", "check", *session.posargs, extras=("golden",), flashinfer=False)


@nox.session(default=False)
def sanitize(session: nox.Session) -> None:
    """Run some hopper cases under compute-sanitizer; 2 where it or a Hopper GPU is missing."""
    verdict(session, "conformance", "sanitize", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure plans and kernels beside FlashInfer's wrapper; 2 where a Hopper GPU is missing."""
    verdict(session, "conformance", "bench", *session.posargs)


@nox.session(default=False)
def bundle(session: nox.Session) -> None:
    """Pack what a GPU machine without network needs: nox -s bundle -- 0.7.2.post1 0.7.4."""
    verdict(session, "conformance", "bundle", *session.posargs, extras=("test", "bundle"))


@nox.session(default=False)
def gate(session: nox.Session) -> None:
    """Say whether FlashInfer may be upgraded: nox -s gate -- 0.7.2.post1 0.7.4."""
    verdict(session, "conformance", "gate", *session.posargs, extras=("test", "bundle"))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style."""
    session.install("ruff>=0.9")
    run_module(session, "ruff", "check", *(session.posargs or ["."]))


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    install_suite(session, extras=("test", "types", "redis"), flashinfer=False)
    run_module(session, "mypy", *session.posargs)


def run_module(session: nox.Session, *command: str) -> None:
    """Run one `python -m` line of the session's environment."""
    session.run("python", "-m", *command)


def verdict(
    session: nox.Session,
    *command: str,
    extras: Sequence[str] = ("test",),
    flashinfer: bool = True,
) -> None:
    """Install, run one line, and leave nox with that line's own exit code.

    nox would turn every failure into 1, which here means "does not conform".
    """
    try:
        install_suite(session, extras=extras, flashinfer=flashinfer)
    except CommandFailed:
        raise SystemExit(SUITE_FAILED) from None
    try:
        run_module(session, *command)
    except CommandFailed as failure:
        raise SystemExit(exit_code(failure)) from None


def exit_code(failure: CommandFailed) -> int:
    """The failed command's exit code where it is one of the suite's, else 3 (a crash, say)."""
    code = getattr(failure, "return_code", None)
    if code is None:  # older nox tells it in words alone: "Returned code 2"
        last_word = str(failure).rpartition(" ")[2]
        code = int(last_word) if last_word.lstrip("-").isdigit() else SUITE_FAILED
    return code if code in range(4) else SUITE_FAILED


def install_suite(
    session: nox.Session, extras: Sequence[str] = ("test",), *, flashinfer: bool = True
) -> None:
    """Install what the suite needs on this machine, of torch only the build it can use."""
    if target(session) == "gpu":
        session.install("-e", f".[{','.join((*extras, 'gpu'))}]")
        return
    constraints = ("-c", CPU_CONSTRAINTS)
    session.install(
        *(*constraints, *torch_index(session), "--no-compile"), "-e", f".[{','.join(extras)}]"
    )
    if flashinfer:
        # Read as sources, and the planner compiled: its GPU dependencies are of no use here.
        headers = ("nvidia-cuda-runtime", "nvidia-cuda-crt")
        session.install(*constraints, "--no-deps", "--no-compile", "flashinfer-python", *headers)


def target(session: nox.Session) -> str:
    """'gpu' where the driver shows a device of capability 9.0, else 'cpu'."""
    chosen = settings_of(session).nox_target
    if chosen is not None:
        return chosen
    gpus = driver.query()
    found = ", ".join(f"{major}.{minor}" for major, minor in gpus.capabilities) or "no GPU"
    session.log(f"installing for {'gpu' if gpus.hopper else 'cpu'}: the driver shows {found}")
    return "gpu" if gpus.hopper else "cpu"


def settings_of(session: nox.Session) -> settings.Settings:
    """The settings in force; a wrong one ends nox with 3."""
    try:
        return settings.load()
    except settings.SettingsError as problem:
        session.warn(str(problem))
        raise SystemExit(SUITE_FAILED) from None


def torch_index(session: nox.Session) -> list[str]:
    """Options that make pip prefer torch's CPU build; stops before a CUDA build is downloaded."""
    chosen = settings_of(session).torch_index
    if chosen is not None:
        return ["--extra-index-url", chosen] if chosen else []
    if answers(f"{TORCH_CPU_INDEX}/torch/"):
        return ["--extra-index-url", TORCH_CPU_INDEX]
    build = torch_build(session)
    if build.endswith("+cpu"):
        return []
    session.warn(
        f"pip would download torch {build or '(unknown build)'}, a CUDA build of several GB, and "
        f"{TORCH_CPU_INDEX}, which serves CPU builds, does not answer. Set SMLA_TORCH_INDEX to an "
        "index of torch's CPU wheels that this machine reaches, or to the empty string to take "
        "what pip finds."
    )
    raise SystemExit(SUITE_FAILED)


def answers(url: str) -> bool:
    """Whether a web server answers this URL with success in a few seconds."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS
        ) as response:
            return bool(200 <= response.status < 300)
    except (OSError, ValueError, ssl.SSLError, urllib.error.URLError, http.client.HTTPException):
        return False


def torch_build(session: nox.Session) -> str:
    """The torch version pip's own settings choose, local part included; downloads no wheel."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        session.run(
            *("python", "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"),
            *("--quiet", "--report", str(report), "-c", CPU_CONSTRAINTS, "torch"),
            log=False,
            silent=True,
        )
        items = json.loads(report.read_text())["install"]
    return str(items[0]["metadata"]["version"]) if items else ""
