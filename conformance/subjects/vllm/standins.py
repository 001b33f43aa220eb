"""What vLLM's modules import of the rest of vLLM: stand-ins of our own, nothing of vLLM's.

Most names are only bases, decorators and annotations: they get `Nothing`, which takes any use and
does nothing. The few whose values matter are in `values`.
"""

from abc import ABCMeta
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch


class _NothingType(ABCMeta):
    """A class made for a name that nobody defined: false, with any attribute, a no-op decorator."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__dict__.get("_is_stand_in") and _decorates(args, kwargs):
            return args[0]
        return super().__call__(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name.startswith("_abc"):
            raise AttributeError(name)
        return named(name)

    def register(cls, *args: Any, **kwargs: Any) -> Any:
        """Else ABCMeta's own would be found first."""
        return args[0] if _decorates(args, kwargs) else named("register")()

    def __bool__(cls) -> bool:
        return False

    def __iter__(cls) -> Any:
        return iter(())


class Nothing(metaclass=_NothingType):
    """Takes any use; false."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not type(self).__dict__.get("_is_stand_in"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return named(name)()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if _decorates(args, kwargs) else self

    def __bool__(self) -> bool:
        return False


def _decorates(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return len(args) == 1 and not kwargs and isinstance(args[0], FunctionType | type)


def named(name: str) -> Any:
    """A fresh stand-in class of this name."""
    return _NothingType(name, (Nothing,), {"_is_stand_in": True})


class DeviceCapability(NamedTuple):
    """A GPU's compute capability."""

    major: int
    minor: int


class StandIn(ModuleType):
    """A module that has whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = named(name)
        setattr(self, name, made)
        return made


class Platform(Nothing):
    """The platform: an NVIDIA GPU of compute capability 9.0, simulated or not."""

    _is_stand_in = True

    def is_cuda(self) -> bool:
        return True

    def is_cuda_alike(self) -> bool:
        return True

    def is_device_capability_family(self, capability: int) -> bool:
        return capability // 10 == 9

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn


class IndexGroups(Nothing):
    """Groups of layers that share a conversion; the backend for Hopper converts in each layer."""

    _is_stand_in = True

    def register_layer(self, *args: Any, **kwargs: Any) -> tuple[None, int]:
        return None, 0


def values(
    triton: Any, language: Any, config: Callable[[], Any], pin_memory: bool
) -> dict[str, dict[str, Any]]:
    """Names whose values matter, by module.

    config: returns the configuration that is current. FlashInfer counts as prebuilt, as a bundle
    brings it: vLLM's gate asks for a compiler otherwise.
    """

    def upload(
        data: Any, device: Any = None, dtype: Any = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        host = torch.as_tensor(data, dtype=dtype)
        host = host.pin_memory() if pin_memory else host
        if out is None:
            return host.to(device, non_blocking=True)
        return out.copy_(host, non_blocking=True)

    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    return {
        "vllm.triton_utils": {"triton": triton, "tl": language, "HAS_TRITON": True},
        "vllm.config": {
            "get_current_vllm_config": config,
            "get_current_vllm_config_or_none": config,
        },
        "vllm.envs": {"VLLM_HAS_FLASHINFER_CUBIN": True},
        "vllm.distributed": {
            "get_dcp_group": lambda: alone,
            "get_tensor_model_parallel_world_size": lambda: 1,
        },
        "vllm.distributed.parallel_state": {
            "get_dcp_group": lambda: alone,
            "get_pcp_group": lambda: alone,
            "get_dcp_world_size_and_rank": lambda wanted: (1, 0),
        },
        "vllm.platforms": {"current_platform": Platform()},
        "vllm.platforms.interface": {"DeviceCapability": DeviceCapability},
        "vllm.utils.torch_utils": {"PIN_MEMORY": pin_memory, "async_tensor_h2d": upload},
        "vllm.transformers_utils.deepseek_v4_utils": {"get_compress_ratios": lambda config: None},
        "vllm.v1.attention.backends.mla.index_group": {
            "SparseMLAIndexGroupBuilder": IndexGroups,
        },
        "vllm.v1.kv_cache_interface": {
            "is_quantized_kv_cache": lambda dtype: str(dtype).startswith("fp8"),
        },
    }
