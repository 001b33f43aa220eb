"""In place of the wheel flashinfer-cubin: the SM90 MLA path takes no cubins."""

import os
from importlib import metadata
from pathlib import Path

__version__ = metadata.version("flashinfer-python")


def get_cubin_dir() -> str:
    """A folder of this bundle's own, which need not exist."""
    return str(Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", Path.home())) / "cubins")
