"""Modules that memory and communication of sharded parameters belong to, also where hooks gather them for the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, _flat_param, _runtime_utils
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from scaleproof.validator.capture.context import ScriptContext

# Methods that gather, free and reduce the parameters of a group, of fully_shard, or of a flat parameter, of
# FullyShardedDataParallel.
_GROUP: Final = ("unshard", "wait_for_unshard", "reshard", "post_backward", "finalize_backward")
_FLAT: Final = ("pre_unshard", "unshard", "post_unshard", "reshard")


def install(context: ScriptContext) -> None:
    """Makes a context follow what shards and gathers parameters."""
    for name in _GROUP:
        _replace(FSDPParamGroup, name, context, lambda group, *_: group.modules[0])
    for name in _FLAT:
        _replace(_flat_param.FlatParamHandle, name, context, lambda handle, *_: handle._fully_sharded_module)
    _replace(_runtime_utils, "_post_backward_hook", context, lambda _, handle, *__: handle._fully_sharded_module)


def whole_parameters(roots: Iterable[nn.Module], parameters: Iterable[torch.Tensor]) -> int:
    """Number of elements of parameters, those of flat ones before they were divided among ranks."""
    modules = (module for root in roots for module in root.modules() if isinstance(module, FullyShardedDataParallel))
    flat = {id(handle): handle.flat_param for module in modules if (handle := module._handle) is not None}
    parts = {id(part) for one in flat.values() for part in (one, *(one._params or ()))}
    whole = sum(one._unpadded_unsharded_size.numel() for one in flat.values())
    return whole + sum(parameter.numel() for parameter in parameters if id(parameter) not in parts)


def _replace(owner: Any, name: str, context: ScriptContext, module_of: Callable[..., Any]) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def within(*arguments: Any, **keywords: Any) -> Any:
        with context.owned_by(module_of(*arguments)):
            return original(*arguments, **keywords)

    setattr(owner, name, within)
