"""The suite's own Triton kernel compiles for compute capability 9.0, on a machine without.

The interpreter runs Python and forgives what Triton's compiler does not.
"""

import os
from typing import Any

import pytest

from conformance.core import blocking

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on, nothing is compiled", allow_module_level=True)

triton = pytest.importorskip("triton")
HOPPER = ("cuda", 90, 32)


def compiled(function: Any, signature: dict[str, str], constants: dict[str, Any]) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget(*HOPPER))


def test_the_kernel_that_holds_the_device_compiles() -> None:
    made = compiled(blocking._spin, {"flag": "*i32", "most": "i32"}, {})
    assert "ld.volatile" in made.asm["ptx"], "the flag would be read once"
