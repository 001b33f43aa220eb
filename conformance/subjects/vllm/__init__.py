"""The class that vLLM ships for this backend, out of vLLM's own files, as a subject.

`source` says where the files come from, `loader` loads them with the `standins` for the rest of
vLLM, `model` is what vLLM has around a layer, `adapter` is the subject. No file of vLLM is part of
this suite.
"""

from typing import Any


def subject(place: str = "") -> Any:
    """The subject of the vLLM at a place (see `source.read`); the installed one by default."""
    from conformance.subjects.vllm.adapter import VllmSubject
    from conformance.subjects.vllm.source import read

    return VllmSubject(read(place))


def factory(spec: str) -> str:
    """The factory, as `load_subject` takes it, of `vllm`, `vllm==VERSION` or `vllm@PATH`.

    Raises SuiteError where there is no such vLLM. A version is fetched into the cache here, so
    that the processes of a run only read it.
    """
    from pathlib import Path

    from conformance.core.request import SuiteError
    from conformance.subjects.vllm.source import fetched, read

    name, at, path = spec.partition("@")
    name, equal, version = name.partition("==")
    if name != "vllm" or (at and (equal or not path)) or (equal and not version):
        raise SuiteError(
            f"subject {spec!r}: found no vLLM in these words; allowed: vllm, vllm==VERSION, "
            "vllm@PATH; to fix: correct the name"
        )
    place = str(Path(path).resolve()) if at else str(fetched(version)) if equal else ""
    read(place)
    return f"{__name__}:subject" + (f"@{place}" if place else "")
