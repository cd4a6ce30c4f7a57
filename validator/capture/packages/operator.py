"""The operator by which stand-ins of packages launch kernels: PyTorch sees one operator, a capture records one kernel."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch._library.custom_ops import CustomOpDef

from scaleproof.simulator.captured.known_kernels import WORK, plain_of
from scaleproof.simulator.model.torch_operators import Work

if TYPE_CHECKING:
    from scaleproof.validator.capture.backend.kernels import Kernels

KERNEL: Final = "scaleproof::kernel"
# The work of a kernel whose time is that of the bytes which it moves.
MOVES: Final = Work(boundness="bandwidth")
# That of a kernel of which only the bytes are known.
UNKNOWN: Final = Work(boundness="unknown")
Result = tuple[Sequence[int], torch.dtype]
_library: Any = torch.library.Library("scaleproof", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("kernel(str name, Tensor[] inputs, str results, str work) -> Tensor[]")
_installed: list[Kernels] = []


def install(kernels: Kernels) -> None:
    """Makes kernels that are launched without the operator known to this process."""
    _installed[:] = [kernels]


def results_of(text: str, device: torch.device) -> list[torch.Tensor]:
    """Empty tensors of the sizes that a call of the operator gives as text."""
    return [torch.empty(sizes, dtype=getattr(torch, dtype), device=device) for sizes, dtype in json.loads(text)]


@torch.library.register_fake(KERNEL)  # type: ignore[untyped-decorator]
def _(_: str, inputs: list[torch.Tensor], results: str, __: str) -> list[torch.Tensor]:
    return results_of(results, inputs[0].device)


def like(tensor: torch.Tensor) -> Result:
    """A result with the sizes and the type of a tensor."""
    return tensor.shape, tensor.dtype


def launch(name: str, inputs: Sequence[torch.Tensor], results: Sequence[Result], work: Work = MOVES) -> list[torch.Tensor]:
    """Launches a kernel without gradients, and returns its results."""
    plain = [[[int(size) for size in sizes], str(dtype).removeprefix("torch.")] for sizes, dtype in results]
    operator: Any = torch.ops.scaleproof.kernel
    made: list[torch.Tensor] = operator(name, list(inputs), json.dumps(plain), json.dumps(plain_of(work)))
    return made


def update(name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], work: Work = MOVES) -> None:
    """Launches a kernel that writes tensors which exist, such as an optimizer's."""
    _installed[0].launch(name, inputs, outputs, {WORK: plain_of(work)})


def integers(tensor: torch.Tensor) -> list[int] | None:
    """The values of a tensor of integers, such as lengths; None where they are not known, as while a compiler traces."""
    is_real = type(tensor) is torch.Tensor and bool(_installed)
    return _installed[0].integers(tensor) if is_real else None


class Call(NamedTuple):
    """A kernel and that of its gradients. results: that users get; kept: further ones, for the backward pass. backward: work of
    the kernel of the gradients; launched once for all inputs that need one. keeps_results: whether the backward pass reads
    results too. keeps: places of the inputs that it reads, all if None."""

    name: str
    results: Sequence[Result]
    work: Work = MOVES
    backward: Work = MOVES
    kept: Sequence[Result] = ()
    keeps_results: bool = False
    keeps: Sequence[int] | None = None


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = launch(call.name, tensors, [*call.results, *call.kept], call.work)
        count = len(call.results)
        inputs = tensors if call.keeps is None else [tensors[place] for place in call.keeps]
        ctx.save_for_backward(*inputs, *(made if call.keeps_results else made[count:]))
        ctx.call, ctx.inputs = call, [like(tensor) for tensor in tensors]
        ctx.mark_non_differentiable(*made[count:])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        needs = ctx.needs_input_grad[1:]
        given = [one for one in gradients[: len(ctx.call.results)] if one is not None]
        wanted = [one for one, is_needed in zip(ctx.inputs, needs, strict=True) if is_needed]
        made = iter(launch(f"{ctx.call.name}_backward", [*given, *ctx.saved_tensors], wanted, ctx.call.backward))
        return None, *(next(made) if is_needed else None for is_needed in needs)


def launch_with_gradients(call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Launches a kernel whose results have gradients, and returns them and what it keeps."""
    apply: Any = _WithGradients.apply
    made: tuple[torch.Tensor, ...] = apply(call, *tensors)
    return made


def install_custom_operators(note: Callable[[str], None]) -> None:
    """Makes operators of `torch.library.custom_op` whose code for CUDA cannot be imported launch a kernel of unknown cost, with
    the results that their `register_fake` gives. note: gets a sentence for users."""
    register = CustomOpDef.register_kernel

    def registered(this: Any, device_types: Any, function: Any = None, /) -> Any:
        if function is None:
            return lambda of: registered(this, device_types, of)

        def run(*arguments: Any, **keywords: Any) -> Any:
            try:
                return function(*arguments, **keywords)
            except (ImportError, OSError) as error:
                if this._abstract_fn is None:
                    raise
                note(f"calls {this._qualname}, whose kernel cannot be loaded ({error}); it costs the bytes of its tensors")
            meta = torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.to("meta"), (arguments, keywords))
            results, structure = torch.utils._pytree.tree_flatten(this._abstract_fn(*meta[0], **meta[1]))
            inputs = [one for one in torch.utils._pytree.tree_leaves((arguments, keywords)) if isinstance(one, torch.Tensor)]
            made = launch(this._qualname, inputs, [like(one) for one in results], UNKNOWN)
            return torch.utils._pytree.tree_unflatten(made, structure)

        return register(this, device_types, run)

    CustomOpDef.register_kernel = registered  # type: ignore[method-assign]
