"""The kernels of the GPU that does not exist: each operator is recorded, and gets results of the right shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from scaleproof.simulator.captured.known_kernels import WORK, counted_flops, kernel_work
from scaleproof.simulator.captured.record import Category, EventKind, Signature
from scaleproof.validator.capture.backend import decisions
from scaleproof.validator.capture.backend.calls import CallRecorder
from scaleproof.validator.capture.backend.memory import CPU_KEYS, Arena, Content
from scaleproof.validator.capture.backend.schemas import (
    OperatorSchema,
    moved_bytes,
    schema_of,
    signature_of,
    tensor_text,
    tensors_of,
)
from scaleproof.validator.capture.backend.values import Values, returned
from scaleproof.validator.capture.context import Place
from scaleproof.validator.capture.packages.operator import KERNEL, results_of
from scaleproof.validator.capture.trace import RankTrace

Overload = torch._ops.OpOverload
_META: Final = torch.device("meta")
_FLASH, _EFFICIENT = 1, 2
# The place of the argument `sparse` of the gradient of an `EmbeddingBag`.
_SPARSE: Final = 9


class UnknownShapeError(RuntimeError):
    """An operator's results depend on values that a capture does not compute."""


class Kernels:
    """Called by PyTorch for each operator on CUDA tensors, below autograd. trace: where operators are recorded. keeps_calls:
    whether with their arguments, so that they can be repeated."""

    def __init__(self, arena: Arena, values: Values, trace: RankTrace, keeps_calls: bool = False) -> None:
        self._arena, self._values, self._trace = arena, values, trace
        self._calls = CallRecorder(arena, values.content) if keeps_calls else None
        self._special: dict[str, Callable[[Overload, Sequence[Any], dict[str, Any]], Any]] = {
            "aten::empty": self._empty,
            "aten::empty_strided": self._empty_strided,
            "aten::resize_": self._resize,
            "aten::set_": self._view,
            "aten::_local_scalar_dense": self._item,
            "aten::copy_": self._copy,
            "aten::record_stream": lambda *_: None,
            "aten::is_pinned": lambda *_: False,
            **dict.fromkeys(("aten::_use_cudnn_ctc_loss", "aten::_use_miopen_ctc_loss"), lambda *_: False),
            "aten::_pin_memory": lambda _, arguments, __: arguments[0],
            "aten::_fused_sdp_choice": lambda _, arguments, __: _EFFICIENT if arguments[0].dtype is torch.float32 else _FLASH,
            "aten::_embedding_bag_backward": self._bag_backward,
            KERNEL: self._of_package,
        }

    def __call__(self, operator: Overload, *arguments: Any, **keywords: Any) -> Any:
        """Runs an operator."""
        with self._trace.host.recording(arguments):
            return self._called(operator, arguments, keywords)

    def _called(self, operator: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        schema = schema_of(operator)
        special = self._special.get(schema.name)
        if special is not None:
            return special(operator, arguments, keywords)
        if schema.is_view:
            return operator.redispatch(CPU_KEYS, *arguments, **keywords)
        return self._run(operator, schema, arguments, keywords)

    def _run(self, operator: Overload, schema: OperatorSchema, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        tensors = tensors_of((arguments, keywords))
        written = schema.writes(arguments, keywords)
        targets = tensors_of(written)
        of_target = {id(tensor) for tensor in targets}
        inputs = [tensor for tensor in tensors if id(tensor) not in of_target] if schema.out else tensors
        place = self._trace.context.place()
        before = self._calls.before(arguments, keywords) if self._calls is not None else None
        if self._values.computes(schema, tensors, inputs):
            try:
                result = self._values.compute(operator, schema, (arguments, keywords), inputs)
            except (NotImplementedError, RuntimeError):
                # a type that the CPU does not compute with, or indices that are invented
                result = self._shape(operator, schema, arguments, keywords, written, inputs)
        else:
            result = self._shape(operator, schema, arguments, keywords, written, inputs)
        outputs = targets if schema.out or not schema.returns else tensors_of(result)
        if any(tensor.is_cuda for tensor in (*inputs, *outputs)):
            call = self._calls.after(operator, before, result) if self._calls is not None and before is not None else None
            signature = signature_of(operator, inputs, outputs, arguments, keywords)
            flops = self._flops(schema, arguments, keywords, result, signature)
            self._record(schema.name, signature, inputs, outputs or targets, flops, place, call)
        return result

    def _record(
        self, name: str, signature: Signature, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], flops: float,
        place: Place | None = None, call: Any = None,
    ) -> None:  # fmt: skip
        read_bytes, written_bytes = moved_bytes(name, inputs, outputs)
        self._trace.add(
            EventKind.OPERATOR, place, name=name, signature=signature, bytes_read=read_bytes, bytes_written=written_bytes,
            flops=flops, call=call, host_s=self._trace.host.taken_s(),
        )  # fmt: skip

    def launch(
        self, name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], arguments: Mapping[str, Any]
    ) -> None:
        """Records a kernel from outside PyTorch, which computes nothing. arguments: see `known_kernels`."""
        signature = Signature(tuple(map(tensor_text, inputs)), tuple(map(tensor_text, outputs)), arguments)
        with self._trace.host.recording():
            self._values.set_content(outputs, Content.UNKNOWN)
            self._record(name, signature, inputs, outputs, counted_flops(kernel_work(name, signature, 0.0)))

    def integers(self, tensor: torch.Tensor) -> list[int] | None:
        """The values of a tensor of integers, None where they are not known. Nothing is recorded, as kernels read them."""
        if not tensor.is_cuda or self._values.content(tensor) is Content.UNKNOWN:
            return None
        return [int(one) for one in self._arena.on_host(tensor).flatten().tolist()]

    def _of_package(self, _: Overload, arguments: Sequence[Any], __: dict[str, Any]) -> list[torch.Tensor]:
        """A kernel of a package: its name, inputs, the sizes of results, and its work."""
        name, inputs, results, work = arguments
        made = [self._like(one) for one in results_of(results, _META)]
        self.launch(name, inputs, made, {WORK: json.loads(work)})
        return made

    def _flops(
        self, schema: OperatorSchema, arguments: Sequence[Any], keywords: dict[str, Any], result: Any, signature: Signature
    ) -> float:
        """FLOPs by PyTorch's formula; where it does not fit the call, by the shapes of tensors, which a note says."""
        if schema.formula is None:
            return 0.0
        without_out = {name: value for name, value in keywords.items() if name != "out"}
        try:
            return float(schema.formula(*arguments[: schema.formula_arguments], **without_out, out_val=result))
        except Exception as error:
            self._trace.note(f"calls {schema.name}, whose FLOPs were counted by the shapes of its tensors ({error})")
        try:
            return counted_flops(kernel_work(schema.name, signature, 0.0))
        except Exception:
            return 0.0

    def _shape(
        self, operator: Overload, schema: OperatorSchema, arguments: Sequence[Any], keywords: dict[str, Any],
        written: Sequence[Any], inputs: Sequence[torch.Tensor],
    ) -> Any:  # fmt: skip
        """Results of the right shapes without values."""
        if schema.name == "aten::_amp_foreach_non_finite_check_and_unscale_":
            # gradients are finite
            return None
        values = self._values
        overload = operator._overloadname
        if written:
            targets = tensors_of(written)
            if schema.out and any(not tensor.numel() for tensor in targets):
                self._allocate_outputs(operator, arguments, keywords, targets)
            values.set_content(targets, Content.UNKNOWN)
            if schema.out:
                decisions.decide(values, schema.name, overload, arguments, targets)
            return returned(schema, written)
        result = decisions.counted(values, schema.name, arguments, keywords)
        if result is not None:
            return result
        result = tree_map(self._like, self._on_meta(operator, arguments, keywords))
        outputs = tensors_of(result)
        values.set_content(outputs, Content.UNKNOWN)
        decisions.decide(values, schema.name, overload, arguments, outputs)
        return result

    def _on_meta(self, operator: Overload, arguments: Any, keywords: Any) -> Any:
        """Runs an operator on tensors without values. Raises UnknownShapeError where its shapes need values."""
        meta_arguments, meta_keywords = tree_map(on_meta, (arguments, keywords))
        try:
            return operator(*meta_arguments, **meta_keywords)
        except NotImplementedError:
            name = str(operator._schema.name).removeprefix("aten::")
            raise UnknownShapeError(
                f"{name} needs values that a capture does not compute; replace it by an operator whose result has a fixed shape"
            ) from None

    def _like(self, value: Any) -> Any:
        return self._arena.empty(value.size(), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value

    def _allocate_outputs(self, operator: Overload, arguments: Any, keywords: Any, targets: Sequence[torch.Tensor]) -> None:
        """Gives memory to results that were passed without any."""
        meta_arguments, meta_keywords = tree_map(on_meta, (arguments, keywords))
        operator(*meta_arguments, **meta_keywords)
        of_target = {id(tensor) for tensor in targets}
        pairs = zip(tree_leaves((arguments, keywords)), tree_leaves((meta_arguments, meta_keywords)), strict=True)
        for target, meta in pairs:
            if isinstance(target, torch.Tensor) and id(target) in of_target and target.shape != meta.shape:
                self._arena.move(target, self._like(meta), meta.size(), meta.stride())

    def _view(self, operator: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        return operator.redispatch(CPU_KEYS, *arguments, **keywords)

    def _empty(self, _: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.Tensor:
        meta = torch.empty(arguments[0], memory_format=keywords.get("memory_format"), device=_META)
        return self._arena.empty(meta.size(), meta.stride(), keywords.get("dtype") or torch.get_default_dtype())

    def _empty_strided(self, _: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.Tensor:
        return self._arena.empty(arguments[0], arguments[1], keywords.get("dtype") or torch.get_default_dtype())

    def _resize(self, _: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.Tensor:
        tensor, size = arguments[0], arguments[1]
        meta = torch.empty(size, memory_format=keywords.get("memory_format"), device=_META)
        fits = tensor.numel() >= meta.numel() and tensor.is_contiguous()
        memory = tensor if fits else self._arena.empty(meta.size(), meta.stride(), tensor.dtype)
        return self._arena.move(tensor, memory, meta.size(), meta.stride())

    def _bag_backward(self, operator: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """The gradient of an `EmbeddingBag`; a sparse one is made of other operators."""
        return (self._view if arguments[_SPARSE] else self._recorded)(operator, arguments, keywords)

    def _recorded(self, operator: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        return self._run(operator, schema_of(operator), arguments, keywords)

    def _item(self, _: Overload, arguments: Sequence[Any], __: dict[str, Any]) -> Any:
        self._trace.add(EventKind.ITEM, name="aten::_local_scalar_dense")
        return self._values.item(arguments[0])

    def _copy(self, operator: Overload, arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.Tensor:
        target, source = arguments[0], arguments[1]
        waits = not (arguments[2] if len(arguments) > 2 else keywords.get("non_blocking", False))
        name = f"{'device' if source.is_cuda else 'host'} to {'device' if target.is_cuda else 'host'}"
        read_bytes, written_bytes = moved_bytes("", [source], [target])
        signature = Signature((tensor_text(source),), (tensor_text(target),), {"non_blocking": not waits})
        self._trace.add(
            EventKind.COPY, name=name, signature=signature, bytes_read=read_bytes, bytes_written=written_bytes, flops=0.0,
            call=self._calls.copy(target, source) if self._calls is not None else None,
        )  # fmt: skip
        if name == "host to device" and (block := self._arena.block(target)) is not None:
            self._trace.holds(block.number, Category.INPUTS)
        self._values.copy(target, source)
        if waits and name != "device to device":
            self._trace.add(EventKind.SYNCHRONIZE, other_stream=self._trace.context.stream)
        return target  # type: ignore[no-any-return]


def on_meta(value: Any) -> Any:
    """The same tensor or device without memory; any other value as it is."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)
    return _META if isinstance(value, torch.device) else value
