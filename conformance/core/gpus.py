"""Which GPUs a hopper run uses, and the pytest options that give each a worker of its own."""

from collections.abc import Sequence

from conformance.core.request import SuiteError

HOPPER = (9, 0)
VARIABLE = "CUDA_VISIBLE_DEVICES"


def names(variable: str | None, capabilities: Sequence[tuple[int, int]]) -> list[str]:
    """Return names under which CUDA shows single Hopper GPUs: numbers, or UUIDs as given.

    variable: the caller's CUDA_VISIBLE_DEVICES, None where it is unset. capabilities: of the
    devices that CUDA shows under it, in its order; entries behind an invalid one show none.
    """
    if variable is None:
        entries = [str(number) for number in range(len(capabilities))]
    else:
        entries = [entry.strip() for entry in variable.split(",")]
    return [
        name
        for name, capability in zip(entries, capabilities, strict=False)
        if capability == HOPPER
    ]


def visible_capabilities() -> list[tuple[int, int]]:
    """Return the compute capability of each device that CUDA shows this process."""
    import torch  # seconds, and for a run without a GPU tier nothing else needs it

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]


def worker_options(gpus: Sequence[str], workers: str) -> list[str]:
    """Return pytest-xdist's options for one worker per GPU, at most `workers` (auto: all).

    The GPU is part of a worker's specification, from which xdist also makes its replacement.
    """
    if workers not in ("auto", "logical") and not workers.isdigit():
        raise SuiteError(f"workers {workers!r}: allowed are a number, auto and logical")
    count = int(workers) if workers.isdigit() else len(gpus)
    if count == 0:
        return ["-n", "0"]
    options = ["--dist", "load"]
    for gpu in gpus[:count]:
        options += ["--tx", f"popen//env:{VARIABLE}={gpu}"]
    return options
