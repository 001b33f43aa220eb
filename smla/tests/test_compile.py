"""Every kernel compiles for compute capability 9.0, with what a step gives it, on any machine.

The interpreter runs Python and forgives what Triton's compiler does not.
"""

import os
import re

import pytest
import torch
import triton

import smla
from smla.tests.workbench import CONFIG, FP8_CONFIG, GROUP_CONFIG, NUM_SMS, Simulated, Workbench

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on, nothing is compiled", allow_module_level=True)

TYPES = {torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8", torch.bfloat16: "*bf16",
         torch.float32: "*fp32", torch.float8_e4m3fn: "*fp8e4nv",
         int: "i32", float: "fp32"}  # fmt: skip


class Recording(smla.CpuRuntime):
    """Keeps one launch of each variant of each kernel."""

    def __init__(self):
        super().__init__(num_sms=NUM_SMS)
        self.launches = {}

    def launch(self, kernel, grid, args, meta):
        self.launches[kernel.name, *meta.values()] = (kernel, args, meta)
        super().launch(kernel, grid, args, meta)


def launches():
    seen: dict = {}
    for config in (CONFIG, FP8_CONFIG, GROUP_CONFIG):
        runtime = Recording()
        Workbench(config, runtime, Simulated()).good_step()
        seen |= runtime.launches
    for kpe in (0, 64):
        runtime = Recording()
        cache = torch.zeros(2, 64, 512 + kpe, dtype=torch.uint8)
        ckv, rope = (torch.zeros(3, dim, dtype=torch.bfloat16) for dim in (512, kpe))
        slots, scales = torch.tensor([5, -1, 9]), smla.new_group_scales(runtime, cache)
        smla.write_per_tensor(runtime, ckv, rope, cache, slots, k_scale=0.3)
        smla.write_per_group(runtime, ckv, rope, cache, scales, slots, k_scale=0.5)
        seen |= runtime.launches
    runtime = Recording()
    caches = (
        torch.zeros(3, 64, 656, dtype=torch.uint8),
        torch.zeros(3, 64, 576, dtype=torch.bfloat16),
    )
    smla.convert_ds_mla(runtime, *caches)
    smla.convert_ds_mla(runtime, *caches, torch.arange(5))
    return seen | runtime.launches


LAUNCHES = launches()


def test_every_kernel_is_seen():
    names = {name for name, *_ in LAUNCHES}
    assert names == {
        "row_map", "clamp", "convert", "pack", "rescale", "write_per_tensor", "write_per_group",
        "ds_mla",
    }  # fmt: skip


def test_both_scalings_and_both_rope_widths_of_the_writes_are_seen():
    writes = [
        (name, meta["KPE"])
        for (name, *_), (_, _, meta) in LAUNCHES.items()
        if name.startswith("write")
    ]
    assert sorted(writes) == [
        (name, kpe) for name in ("write_per_group", "write_per_tensor") for kpe in (0, 64)
    ]
    groups = {meta["GROUPS"] for _, _, meta in LAUNCHES.values() if "HAS_SCALE" in meta}
    assert groups == {0, 2}, "convert with group scales and without"


@pytest.mark.parametrize("key", list(LAUNCHES), ids=lambda key: "-".join(map(str, key)))
def test_a_kernel_compiles(key):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, args, meta = LAUNCHES[key]
    names = kernel.triton.arg_names[: len(args)]
    kinds = [TYPES[getattr(arg, "dtype", type(arg))] for arg in args]
    source = ASTSource(
        fn=kernel.triton,
        signature=dict(zip(names, kinds, strict=True)) | dict.fromkeys(meta, "constexpr"),
        constexprs=dict(meta),
    )
    options = {"num_warps": kernel.num_warps}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert made.asm["cubin"]
    if kernel.name.startswith("write"):
        # Inverses and subnormal numbers as IEEE 754 has them; quotients corrected in one rounding,
        # and codes by the instruction for them.
        for word in ("div.rn.f32", "fma.rn.f32", "cvt.rn.satfinite.e4m3x2.f32"):
            assert word in made.asm["ptx"], word
        assert not re.search(r"div\.(full|approx)|\.ftz", made.asm["ptx"])
