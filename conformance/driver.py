"""Asks NVIDIA's driver which GPUs are here, with the standard library alone.

Used before anything is installed (by the noxfile) and by the doctor, so it neither imports torch
nor creates a CUDA context.
"""

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass

# cuda.h: CUdevice_attribute
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76

HOPPER = (9, 0)


@dataclass(frozen=True)
class Gpus:
    """What the driver answered: one compute capability per visible device."""

    capabilities: tuple[tuple[int, int], ...] = ()
    driver: str | None = None  # version of the driver; None where it was not told
    source: str = ""  # who answered; empty when nobody did

    @property
    def hopper(self) -> bool:
        """Whether at least one visible device has compute capability 9.0."""
        return HOPPER in self.capabilities


def query() -> Gpus:
    """Ask nvidia-smi, else the driver library; `Gpus()` where there is neither."""
    return _from_nvidia_smi() or _from_libcuda() or Gpus()


def parse_nvidia_smi(text: str) -> Gpus | None:
    """Read lines of `compute_cap, driver_version`; None when a line is anything else."""
    capabilities, driver = [], None
    for line in filter(None, map(str.strip, text.splitlines())):
        match = re.fullmatch(r"(\d+)\.(\d+)\s*,\s*([\w.]+)", line)
        if match is None:
            return None
        capabilities.append((int(match[1]), int(match[2])))
        driver = match[3]
    return Gpus(tuple(capabilities), driver, "nvidia-smi") if capabilities else None


def _from_nvidia_smi() -> Gpus | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_nvidia_smi(done.stdout) if done.returncode == 0 else None


def _from_libcuda() -> Gpus | None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, value = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return None
    capabilities = []
    for device in range(count.value):
        pair = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
                return None
            pair.append(value.value)
        capabilities.append((pair[0], pair[1]))
    return Gpus(tuple(capabilities), None, "libcuda")
