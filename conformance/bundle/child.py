"""Runs inside a process of its own, with FlashInfer alone: builds modules, or looks them up.

Started by file, not by module name, so that nothing of this repository is importable here.
"""

import json
import sys

MODULE_MISSING = 41


def build(variants: str) -> list[dict[str, object]]:
    """Generate and compile each (kv dtype, kpe, out dtype); returns name and library of each."""
    made = []
    for kv, kpe, out, spec in _specs(json.loads(variants)):
        spec.build(verbose=False)  # type: ignore[attr-defined]
        made.append(
            {
                "uri": spec.name,  # type: ignore[attr-defined]
                "kv_dtype": kv,
                "head_dim_kpe": kpe,
                "out_dtype": out,
                "library": str(spec.jit_library_path),  # type: ignore[attr-defined]
            }
        )
    return made


def look_up(variants: str) -> list[str]:
    """Import what the suite imports; the prebuilt library FlashInfer finds for each variant."""
    import flashinfer.mla  # noqa: F401

    return [
        str(spec.get_library_path())  # type: ignore[attr-defined]
        for *_, spec in _specs(json.loads(variants))
    ]


def _specs(variants: list[tuple[str, int, str]]) -> list[tuple[str, int, str, object]]:
    import torch
    from flashinfer.jit.attention import gen_batch_mla_module

    bf16 = torch.bfloat16
    return [
        (
            kv,
            kpe,
            out,
            gen_batch_mla_module(
                *("fa3", bf16, getattr(torch, kv), getattr(torch, out), torch.int32),
                *(512, kpe, False),
            ),
        )
        for kv, kpe, out in variants
    ]


if __name__ == "__main__":
    try:
        answer = {"build": build, "look-up": look_up}[sys.argv[1]](sys.argv[2])
    except ModuleNotFoundError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(MODULE_MISSING)
    sys.stdout.write(f"{json.dumps(answer)}\n")
