"""Recording of the operators, activations and saved tensors of a torch module while it runs, and their layers.

Nothing here imports torch: `torch_module` passes in tensors, storages and operators.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, SavedActivation
from scaleproof.simulator.model.recommender.lookups import Looked, LookupDistribution, RowTable
from scaleproof.simulator.model.torch_operators import (
    base_name,
    is_bound_by_bandwidth,
    is_free,
    looks_up,
    looks_up_bags,
    sparse_lookup,
)

# Operators whose gradient needs no value of the forward pass.
_LINEAR: Final = ("add", "cat", "clone", "copy", "div", "dropout", "mean", "neg", "stack", "sub", "sum", "to_copy")
# Operators that read their input twice: for its statistics, and to normalise it.
_READ_TWICE: Final = ("batch_norm_with_update", "native_batch_norm", "native_batch_norm_legit")


# Run number of operators that run before the first module.
_BEFORE_FIRST: Final = -1


@dataclass(eq=False)
class RecordedModule:
    """A module that is recorded as a whole: its operators for one sample, and the elements of its trained parameter tensors.

    run: number of the run; modules of the same run are neighbours. chained: whether it is in a Sequential or a ModuleList.
    has_parameters: trained or frozen ones. frozen: number of frozen parameters. tables: those of the tensors of which rows have
    gradients.
    """

    name: str
    label: str
    run: int
    chained: bool
    has_parameters: bool = False
    operators: list[Operator] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    frozen: int = 0
    tables: list[RowTable] = field(default_factory=list)

    @property
    def computes(self) -> bool:
        """Whether it has operators with FLOPs."""
        return any(operator.forward_flops for operator in self.operators)


@dataclass(eq=False)
class StoredTensor:
    """A tensor storage with the modules that wrote it (None for input data), read it as an activation, and keep it.

    storage: referenced so that its id stays unique. is_frozen: whether it depends on frozen parameters and on no trained ones,
    so that it is an activation without a gradient.
    """

    storage: Any
    elements: int
    element_bytes: int | None
    writer: RecordedModule | None
    readers: list[RecordedModule] = field(default_factory=list)
    keepers: list[RecordedModule] = field(default_factory=list)
    is_frozen: bool = False


class Recorder:
    """Records operators in the module that runs them.

    batch: number of samples. dtype: of the weights. frozen: those of the weights that are parameters without gradients. data:
    input tensors.
    """

    def __init__(self, batch: int, dtype: Any, weights: Iterable[Any], data: Iterable[Any], frozen: Iterable[Any] = ()) -> None:
        self.batch = batch
        self.dtype = dtype
        self.modules: list[RecordedModule] = []
        self.stored: dict[int, StoredTensor] = {}
        self.unknown: set[str] = set()
        self.within = ""
        self.current: RecordedModule | None = None
        self.paused = False
        self.repeated: tuple[str, str] | None = None
        self._weights = {id(storage): storage for storage in (weight.untyped_storage() for weight in weights)}
        self._frozen = {id(weight.untyped_storage()) for weight in frozen}
        # storages that depend on trained parameters or random numbers
        self._learned: set[int] = set()
        # by storage of a weight, numbers of rows that embeddings with sparse gradients read; weights that others read
        self._looked_up: dict[int, list[Any]] = {}
        self._read_whole: set[int] = set()
        for tensor in data:
            self._stored(tensor)

    def enter(self, module: RecordedModule) -> None:
        """Makes `module` the one that runs. One without parameters that has run before belongs to the one that runs."""
        if module not in self.modules:
            self.modules.append(module)
        elif module is not self.current and not module.has_parameters:
            return
        elif module is not self.current and self.current is not None and self.repeated is None:
            self.repeated = module.name, self.current.name
        self.current = module

    @property
    def running(self) -> RecordedModule:
        """The module that runs; operators before the first module belong to one called `inputs`."""
        if self.current is None:
            self.current = RecordedModule("inputs", "inputs", _BEFORE_FIRST, chained=False)
            self.modules.append(self.current)
        return self.current

    def keep(self, tensor: Any) -> Any:
        """Records a tensor that autograd saves, and returns it."""
        if not self.paused and id(tensor.untyped_storage()) not in self._weights:
            self._stored(tensor).keepers.append(self.running)
        return tensor

    def operator(self, function: Any, arguments: Any, results: Any) -> None:
        """Records an operator that ran."""
        if self.paused:
            return
        read, written = list(_tensors(arguments)), list(_tensors(results))
        name = base_name(function._schema.name)
        known = {id(tensor.untyped_storage()) for tensor in read}
        view = not function._schema.is_mutable and all(id(tensor.untyped_storage()) in known for tensor in written)
        self._moved(read, () if view else written)
        scalar = all(tensor.dim() == 0 for tensor in (*read, *written))
        tags = {tag.name for tag in function.tags}
        if "nondeterministic_seeded" in tags:
            self._learned.update(id(tensor.untyped_storage()) for tensor in written)
        looked_up = sparse_lookup(function, *arguments)
        if looked_up is not None:
            self._looked_up.setdefault(id(looked_up[0].untyped_storage()), []).append(looked_up[1])
        elif not view:
            self._read_whole.update(known)
        if view or scalar or "inplace_view" in tags or is_free(name):
            return
        if name in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv"):
            self._add(self._product(name, read))
        elif name == "convolution":
            self._add(self._convolution(read, written[0], arguments[0]))
        else:
            if not (tags & {"pointwise", "reduction"} or is_bound_by_bandwidth(name)):
                self.unknown.add(function._schema.name)
            self._add(self._memory(name, read, written))

    def attention(self, query: Any, key: Any, value: Any, mask: Any, causal: bool, result: Any) -> None:
        """Records attention in one kernel, which keeps its inputs, its output and one number for each row of scores."""
        masks = [] if mask is None else [mask]
        self._kernel([query, key, value, *masks], result, [query, key, value, *masks, result], query.shape[:-1].numel(), 4)
        heads, key_heads = (self.per_sample(tensor.shape[:-2].numel()) for tensor in (query, key))
        sizes = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
        seen, name = 0.5 if causal else 1.0, self._named("attention")
        self._add(Attention(name, heads, key_heads, *sizes, seen=seen, flash=True, has_backward=result.requires_grad))

    def dropout(self, image: Any, result: Any) -> None:
        """Records dropout in one kernel, which keeps a mask of one byte per element."""
        self._kernel([image], result, [], image.numel(), 1)
        self._add(self._memory("dropout", [image], [result]))

    def rms_norm(self, image: Any, weight: Any, result: Any) -> None:
        """Records a norm in one kernel, which keeps its input and one number for each row."""
        read = [image] if weight is None else [image, weight]
        self._kernel(read, result, [image], image.shape[:-1].numel(), 4)
        self._add(self._memory("rms_norm", read, [result]))

    def _kernel(self, read: list[Any], result: Any, kept: list[Any], elements: int, element_bytes: int) -> None:
        """Records what a kernel reads, writes and keeps, including `elements` that it computes only for its backward pass."""
        self._moved(read, [result])
        if not result.requires_grad:
            return
        for tensor in kept:
            self.keep(tensor)
        size = None if element_bytes == self.dtype.itemsize else element_bytes
        own = StoredTensor(None, elements, size, self.running, keepers=[self.running])
        self.stored[id(own)] = own

    def table(self, name: str, weight: Any, tensor: int) -> RowTable | None:
        """A weight as a table, number `tensor` of its layer, if nothing but embeddings with sparse gradients reads it."""
        key = id(weight.untyped_storage())
        if key not in self._looked_up or key in self._read_whole:
            return None
        numbers, (rows, width) = self._looked_up[key], weight.shape
        looked = Looked(LookupDistribution(rows, 0.0), width, sum(one.numel() for one in numbers) / self.batch)
        is_foreseen = not any(id(one.untyped_storage()) in self._learned for one in numbers)
        return RowTable(tensor, looked, name, is_foreseen)

    def per_sample(self, elements: float) -> int:
        """Elements per sample, rounded up."""
        return math.ceil(elements / self.batch)

    def _stored(self, tensor: Any, writer: RecordedModule | None = None) -> StoredTensor:
        storage = tensor.untyped_storage()
        if id(storage) not in self.stored:
            size = tensor.dtype.itemsize
            other = None if tensor.dtype == self.dtype else size
            self.stored[id(storage)] = StoredTensor(storage, storage.nbytes() // size, other, writer)
        return self.stored[id(storage)]

    def _moved(self, read: Iterable[Any], written: Iterable[Any]) -> None:
        """Records the running module as a reader and writer of tensors."""
        read = list(read)
        for tensor in read:
            if not self._is_weight(tensor) and (tensor.requires_grad or self._stored(tensor).is_frozen):
                self._stored(tensor).readers.append(self.running)
        if any(tensor.requires_grad or id(tensor.untyped_storage()) in self._learned for tensor in read):
            self._learned.update(id(tensor.untyped_storage()) for tensor in written)
        is_frozen = any(map(self._follows_frozen, read)) and not any(tensor.requires_grad for tensor in read)
        for tensor in written:
            stored = self._stored(tensor, self.running)
            stored.writer, stored.is_frozen = self.running, is_frozen and tensor.is_floating_point()

    def _follows_frozen(self, tensor: Any) -> bool:
        """Whether a tensor is a frozen parameter, or depends on frozen parameters and on no trained ones."""
        return id(tensor.untyped_storage()) in self._frozen or (not self._is_weight(tensor) and self._stored(tensor).is_frozen)

    def _add(self, operator: Operator) -> None:
        self.running.operators.append(operator)

    def _named(self, operator: str) -> str:
        """The name of the running submodule within its recorded module; the operator's name outside of submodules."""
        inner = self.within.removeprefix(self.running.name).removeprefix(".")
        return inner or operator

    def _is_weight(self, tensor: Any) -> bool:
        return id(tensor.untyped_storage()) in self._weights

    def _product(self, name: str, read: list[Any]) -> Matmul:
        """A matrix product; its rows are those of the operand that is not a weight, which grow with the batch."""
        left, right = read[-2:]
        if self._is_weight(left) and not self._is_weight(right) and right.dim() == 2:
            left, right = right.t(), left.t()
        rows, inner = left.shape[-2:]
        columns = right.shape[-1] if right.dim() > 1 else 1
        count = left.shape[0] if left.dim() == 3 else 1
        if count % self.batch == 0 and not (self._is_weight(left) or self._is_weight(right)):
            count //= self.batch
        else:
            rows = self.per_sample(rows)
        gradients = {"input_gradient": left.requires_grad, "weight_gradient": right.requires_grad}
        return Matmul(self._named(name), rows, columns, inner, count, **gradients)

    def _convolution(self, read: list[Any], result: Any, arguments: Any) -> Convolution:
        """A convolution; dimensions before the last are merged, and a transposed one has a position for each input."""
        image, weight = read[:2]
        transposed, groups = arguments[6], arguments[8]
        shape = weight.shape[2:]
        return Convolution(
            self._named("convolution"),
            image.shape[1],
            result.shape[1],
            (math.prod(shape[:-1]), shape[-1]),
            math.prod((image if transposed else result).shape[2:]),
            self.per_sample(image.numel()),
            groups,
            input_gradient=image.requires_grad,
            weight_gradient=weight.requires_grad,
        )

    def _memory(self, name: str, read: list[Any], written: list[Any]) -> MemoryBound:
        """A memory-bound operator. Its backward pass reads the inputs and the results' gradients and writes the inputs'
        gradients."""
        base = name.strip("_")
        passes = 2 if base in _READ_TWICE else 1
        results = sum(map(self._size, written))
        reads_rows = looks_up(name) or looks_up_bags(name)
        inputs = results if reads_rows else passes * sum(map(self._size, read))
        active = [tensor for tensor in read if tensor.requires_grad and not self._is_weight(tensor)]
        gradients = sum(map(self._size, active))
        trained = any(tensor.requires_grad for tensor in read)
        backward = passes * results + (0 if base in _LINEAR or reads_rows else inputs) if trained else 0
        return MemoryBound(base, *map(self.per_sample, (inputs, results, backward, gradients)))

    def _size(self, tensor: Any) -> float:
        """Elements that a tensor has in memory, in units of the weights' element size."""
        return float(min(tensor.numel() * tensor.dtype.itemsize, tensor.untyped_storage().nbytes()) / self.dtype.itemsize)


def _tensors(value: Any) -> Iterator[Any]:
    """All tensors in nested arguments or results."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@dataclass(slots=True)
class _Flow:
    """Activations of a layer. reads: numbers of the layers it reads; output: elements that later layers read; kept: elements by
    group and by bytes per element."""

    reads: set[int] = field(default_factory=set)
    output: int = 0
    kept: dict[tuple[str, int | None], int] = field(default_factory=dict)


def layers_of(recorder: Recorder, outputs: set[int]) -> list[Layer]:
    """Layers of the recorded modules. outputs: ids of the storages that the model returns."""
    groups = grouped(recorder.modules)
    leading = [max(group, key=lambda module: (module.computes, module.run != _BEFORE_FIRST)) for group in groups]
    chained = [any(module.chained for module in group) for group in groups]
    layers = []
    for index, (group, flow) in enumerate(zip(groups, _flows(recorder, groups, outputs), strict=True)):
        previous = {index - 1} if index else set()
        operators = tuple(operator for module in group for operator in module.operators)
        tensors = tuple(size for module in group for size in module.tensors)
        frozen = sum(module.frozen for module in group)
        first = itertools.accumulate((len(module.tensors) for module in group), initial=0)
        tables = tuple(
            table._replace(tensor=before + table.tensor)
            for before, module in zip(first, group, strict=False)
            for table in module.tables
        )
        kept = tuple(
            SavedActivation("input" if kind == "input" else "activations", elements, size, kind)
            for (kind, size), elements in flow.kept.items()
        )
        costs = (operators, tensors, frozen) if frozen else (operators, tensors)
        digest = hashlib.sha256(repr(costs).encode()).hexdigest()[:8]
        layer = Layer(
            leading[index].name,
            f"traced.{leading[index].label}({digest})",
            operators,
            tensors,
            flow.output,
            # layers before or after all chains
            pinned_to_end=any(chained) and not (any(chained[: index + 1]) and any(chained[index:])),
            kept=kept,
            inputs=None if flow.reads == previous else tuple(leading[i].name for i in sorted(flow.reads)),
            frozen_parameters=frozen,
            row_tables=tables,
        )
        layers.append(layer)
    return layers


def grouped(modules: Sequence[RecordedModule]) -> list[list[RecordedModule]]:
    """Groups of consecutive modules, each of which is one layer."""
    computing = {module.run for module in modules if module.computes}
    groups = [[modules[0]]]
    for previous, module in itertools.pairwise(modules):
        group = groups[-1]
        if previous.run == module.run:
            joins = not (module.computes and any(member.computes for member in group))
        else:
            joins = previous.run == _BEFORE_FIRST or module.run not in computing
        if joins:
            group.append(module)
        else:
            groups.append([module])
    return groups


def _flows(recorder: Recorder, groups: Sequence[Sequence[RecordedModule]], outputs: set[int]) -> list[_Flow]:
    """Activations between layers, and kept ones, which belong to the layer that reads them unless only the writer does."""
    number = {module: index for index, group in enumerate(groups) for module in group}
    flows = [_Flow() for _ in groups]
    for key, stored in recorder.stored.items():
        elements = recorder.per_sample(stored.elements)
        writer = number[stored.writer] if stored.writer else None
        readers = {number[module] for module in stored.readers}
        if writer is not None:
            later = {reader for reader in readers if reader > writer}
            for reader in later:
                flows[reader].reads.add(writer)
            flows[writer].output += elements if later or key in outputs else 0
        keepers = [number[module] for module in stored.keepers]
        if keepers:
            others = [keeper for keeper in keepers if keeper != writer]
            kept = flows[others[0] if others else keepers[0]].kept
            kind = ("input" if others else "layer", stored.element_bytes)
            kept[kind] = kept.get(kind, 0) + elements
    return flows
