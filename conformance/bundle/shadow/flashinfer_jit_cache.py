"""In place of the wheel flashinfer-jit-cache: the bundle's own modules, and no other provider."""

from importlib import metadata
from pathlib import Path

__version__ = metadata.version("flashinfer-python")


def get_jit_cache_dir() -> str:
    """Where the bundle's prebuilt modules are; those that are not there are built."""
    return str(Path(__file__).parents[1] / "flashinfer" / "flashinfer" / "data" / "aot")


def get_jit_cache_providers() -> tuple[()]:
    """No further wheels with modules."""
    return ()
