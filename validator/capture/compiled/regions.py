"""`torch.compile` of a captured script: regions are traced and divided as usual, and their kernels are those of a compiler.

Dynamo traces a region, AOTAutograd makes its forward and its backward graph and decides what is kept in between, and `fusion`
says which operators are one kernel. A fused kernel is recorded with what it reads and writes from outside; what stays inside
takes no memory.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

import torch
from torch import fx, nn

from scaleproof.simulator.captured.record import EventKind, Signature
from scaleproof.simulator.model.torch_operators import looks_up
from scaleproof.validator.capture.backend.memory import Arena
from scaleproof.validator.capture.backend.schemas import moved_bytes, tensor_text, tensors_of
from scaleproof.validator.capture.compiled.attention import KernelInterpreter
from scaleproof.validator.capture.compiled.fusion import Kernel, kernels_of, operator_name, size_bytes
from scaleproof.validator.capture.context import Place, inner_parts
from scaleproof.validator.capture.trace import RankTrace

_NAMESPACE: Final = "inductor"
_GRAPHED: Final = "compiles with CUDA graphs, which are not modelled: kernels take the host's time one by one"
_MODES: Final = ("reduce-overhead", "max-autotune")
_NOTE: Final = "compiles: products are AOTAutograd's, and what is between them is fused by a rule like TorchInductor's"
# Options of torch.compile that decide how code is generated, and of no meaning where none is.
_IGNORED: Final = ("backend", "mode", "options")
# Where modules keep those within them, in Dynamo's names of these.
_DICTIONARIES: Final = re.compile(r"\.(_modules|__dict__)(?=\.)")
_PACKAGE: Final = Path(__file__).parents[3]
# Files with hooks, functions of `torch.cuda` and what stand-ins call, into which compiled code is followed; and stand-ins.
_INLINED: Final = ("simulator/", *(f"validator/capture/{name}.py" for name in (
    "backend/__init__", "backend/cuda_api", "communication/c10d_group", "context",
)))  # fmt: skip
_PYTHON: Final = "validator/capture/packages"


def prepare_compiler() -> None:
    """Fills the compiler's tables of functions, while all of them are PyTorch's own, and hides from it what stands for C++."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    TorchInGraphFunctionVariable._get_handlers()
    trace_rules.SKIP_DIRS.append(f"{_PACKAGE}/")
    trace_rules._recompile_re()
    trace_rules.BUILTIN_INLINE_WHEN_CALLED.update(str(_PACKAGE / path) for path in _INLINED)
    trace_rules.get_legacy_mod_inlinelist().add(str(_PACKAGE / _PYTHON))


class CompiledRegions:
    """Compiles regions. trace: gets their kernels, and a note for users."""

    def __init__(self, trace: RankTrace, arena: Arena) -> None:
        self._trace, self._arena = trace, arena
        self._compile = torch.compile
        # one object, since Dynamo compiles again for another one
        self._backend = self._compiled_graph

    def install(self) -> None:
        """Replaces `torch.compile`, which `Module.compile` calls too."""
        # the context's hooks do nothing where Dynamo looks
        warnings.filterwarnings("ignore", message=".*when there are global hooks on modules.*")
        torch.compile = self._compiled

    def _compiled(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda of: self._compiled(of, **options)
        if options.get("mode") in _MODES or (options.get("options") or {}).get("triton.cudagraphs"):
            self._trace.note(_GRAPHED)
        plain = {name: value for name, value in options.items() if name not in _IGNORED}
        made: Any = self._compile(model, backend=self._backend, **plain)
        if isinstance(model, nn.Module):
            made.forward = self._within(model, made.forward)
            return made
        root = getattr(model, "__self__", None)
        return self._within(root, made) if isinstance(root, nn.Module) else made

    def _within(self, root: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a compiled module, whose code equal modules share."""

        @functools.wraps(call)
        def called(*arguments: Any, **keywords: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return call(*arguments, **keywords)
            with self._trace.context.within_region(root):
                return call(*arguments, **keywords)

        return called

    def _compiled_graph(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch import partitioners
        from torch._functorch._aot_autograd import graph_compile
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table

        self._trace.note(_NOTE)

        def compiled(of: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            return _RunsKernels(of, self._trace, self._arena)

        made: Callable[..., Any] = aot_autograd(
            fw_compiler=compiled, decompositions=select_decomp_table(), partition_fn=min_cut_rematerialization_partition
        )
        # random numbers that are computed again need no state of a generator where they have no values; nobody reads graphs
        with (
            patch.object(partitioners, "functionalize_rng_ops", lambda _, forward, backward, __: (forward, backward)),
            patch.multiple(graph_compile, _log_joint_graph=lambda *_: None, _log_fw_bw_graphs=lambda *_: (None, None)),
        ):
            return cast(Callable[..., Any], made(graph, inputs))


class _RunsKernels:
    """A graph as the kernels that it is compiled to. Called with a list of its inputs, which it clears."""

    def __init__(self, graph: fx.GraphModule, trace: RankTrace, arena: Arena) -> None:
        self._graph, self._trace, self._arena = graph, trace, arena
        self._root = ""
        # what wraps this callable copies its own attributes
        self._boxed_call = True
        nodes = list(graph.graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        self._output = next(node for node in nodes if node.op == "output")
        self._kernels = kernels_of(graph.graph)
        self._last: list[list[fx.Node]] = _last_uses(self._kernels, self._output)

    def __call__(self, inputs: list[Any]) -> Any:
        interpreter = KernelInterpreter(self._graph, self._trace.note)
        values = interpreter.env = dict(zip(self._inputs, inputs, strict=True))
        inputs.clear()
        self._root = self._trace.context.region()
        for kernel, last in zip(self._kernels, self._last, strict=True):
            if kernel.is_fused:
                self._fused(kernel, interpreter)
            else:
                with self._trace.context.within(self._path(kernel)):
                    for node in kernel.nodes:
                        values[node] = interpreter.run_node(node)
            for node in last:
                values.pop(node, None)
        return fx.map_arg(self._output.args[0], lambda node: values[node])

    def _fused(self, kernel: Kernel, interpreter: Any) -> None:
        """Runs the operators of a fused kernel, and records it."""
        values, inside = interpreter.env, set(kernel.nodes)
        reads = {read: values[read] for node in kernel.nodes for read in node.all_input_nodes if read not in inside}
        with self._trace.context.within(self._path(kernel)):
            place = self._trace.context.place()
        with self._trace.unrecorded() as made:
            for node in kernel.nodes:
                values[node] = interpreter.run_node(node)
        escaping = [node for node in kernel.nodes if any(user not in inside for user in node.users)]
        for node in kernel.nodes:
            if node not in escaping:
                del values[node]
        written = {block.number: tensor for tensor in tensors_of([values[node] for node in escaping])
                   if tensor.is_cuda and (block := self._arena.block(tensor)) is not None and block.number in made}  # fmt: skip
        self._arena.collect()
        for number in written:
            self._trace.adopt(number, made[number], place)
        if written or any(_writes(node) for node in kernel.nodes):
            self._record(kernel, place, reads, list(written.values()))

    def _record(self, kernel: Kernel, place: Place, reads: dict[fx.Node, Any], written: Sequence[torch.Tensor]) -> None:
        inputs = {id(tensor.untyped_storage()): tensor for tensor in tensors_of(list(reads.values())) if tensor.is_cuda}
        looked_up = sum(size_bytes(node) for node in kernel.nodes if _is_look_up(node))
        tables = {read for node in kernel.nodes if _is_look_up(node) for read in node.all_input_nodes[:1]}
        whole = [reads[read] for read in reads if read not in tables]
        read_bytes, written_bytes = moved_bytes("", _distinct(tensors_of(whole)), written)
        signature = Signature(tuple(map(tensor_text, inputs.values())), tuple(map(tensor_text, written)), {})
        self._trace.add(
            EventKind.OPERATOR, place, name=f"{_NAMESPACE}::{kernel.name}", signature=signature,
            bytes_read=read_bytes + looked_up, bytes_written=written_bytes, flops=0.0,
        )  # fmt: skip

    def _path(self, kernel: Kernel) -> str:
        """The path of the module of a kernel's first operator that has one."""
        inner = next(filter(None, map(_module_of, kernel.nodes)), "")
        return ".".join(filter(None, (self._root, inner)))


def _last_uses(kernels: Sequence[Kernel], output: fx.Node) -> list[list[fx.Node]]:
    """What is read for the last time by each kernel."""
    kept, last = set(output.all_input_nodes), dict[fx.Node, int]()
    for number, kernel in enumerate(kernels):
        for node in kernel.nodes:
            last |= dict.fromkeys((node, *node.all_input_nodes), number)
    result: list[list[fx.Node]] = [[] for _ in kernels]
    for node, number in last.items():
        if node not in kept:
            result[number].append(node)
    return result


def _distinct(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors on the device, once per storage and shape."""
    return list({(tensor.data_ptr(), tensor.shape): tensor for tensor in tensors if tensor.is_cuda}.values())


def _writes(node: fx.Node) -> bool:
    """Whether an operator changes one of its arguments."""
    target: Any = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_look_up(node: fx.Node) -> bool:
    return looks_up(operator_name(node))


def _module_of(node: fx.Node) -> str:
    """The path in the compiled module of an operator's module; in the backward pass, of the one whose gradient it is."""
    stack: Any = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    if not paths:
        return ""
    words = _DICTIONARIES.sub("", paths[-1].replace("['", ".").replace("']", "")).removeprefix("L.self")
    return ".".join(inner_parts(words))
