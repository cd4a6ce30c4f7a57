"""Kernels of a compiled graph: which operators a compiler for GPUs fuses into one.

As TorchInductor does, operators of single elements are computed again in each kernel that reads them, and only what has to be
is written to memory: results, what kernels of libraries read, reductions, and elements that several read and that depend on
many tensors (torch/_inductor/graph.py, ir.py). What is written is one kernel each; those that have tensors in common and the
same loops are fused, the ones with the most bytes in common first (scheduler.py, codegen/simd.py). Products, attention,
convolutions, sorting and communication stay kernels of their own. Sums over rows, as gradients of weights and biases are, have
other loops than sums of rows; large ones are fused with these even so (scheduler.py, MixOrderReduction).
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import fx

from scaleproof.simulator.model.torch_operators import is_view

# Operators without a tag that compilers generate code for, element by element.
_ELEMENTWISE: Final = {
    "_to_copy", "arange", "bernoulli", "broadcast_in_dim", "cat", "clone", "constant_pad_nd", "convert_element_type",
    "copy", "embedding", "empty", "empty_like", "empty_strided", "expand", "eye", "fill", "flip", "fma", "full",
    "full_like", "gather", "index", "index_select", "inductor_lookup_seed", "inductor_random", "inductor_seeds", "iota",
    "masked_fill", "native_dropout", "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "rand",
    "rand_like", "randn", "randn_like", "repeat", "roll", "scalar_tensor", "select_scatter", "slice_scatter", "stack",
    "tril", "triu", "upsample_nearest2d", "zeros", "zeros_like",
}  # fmt: skip
_REDUCES: Final = {
    "_fused_rms_norm", "_log_softmax", "_softmax", "all", "amax", "amin", "any", "argmax", "argmin", "linalg_vector_norm",
    "logsumexp", "max", "mean", "min", "native_layer_norm", "norm", "prepare_softmax_online", "prod", "std", "sum", "var",
    "var_mean",
}  # fmt: skip
_CONSTANTS: Final = ("full", "full_like", "new_full", "new_zeros", "zeros", "zeros_like")
# Tensors and operators on which elements depend that several kernels compute again, at most; tensors of those that one does
# (torch/_inductor/config.py: realize_reads_threshold, realize_opcount_threshold, realize_acc_reads_threshold).
_MOST_READS_AGAIN: Final = 4
_MOST_OPERATORS: Final = 30
_MOST_READS: Final = 8
# Results that one kernel writes at most (max_fusion_size).
_MOST_FUSED: Final = 64
# Elements, rows and row length from and up to which sums of and over rows are one kernel (scheduler.py, MixOrderReduction).
_MIXED_ELEMENTS: Final = 5 * 2**20
_MIXED_ROWS: Final = 4096
_MIXED_LENGTH: Final = 16 * 1024


class Kernel:
    """Operators that run as one kernel, in order. is_fused: whether a compiler makes it; else it is a library's."""

    __slots__ = ("is_fused", "nodes")

    def __init__(self, nodes: Sequence[fx.Node], is_fused: bool) -> None:
        self.nodes, self.is_fused = nodes, is_fused

    @property
    def name(self) -> str:
        """Such as 'fused_add_gelu'."""
        return "_".join(["fused", *dict.fromkeys(filter(None, map(_short_name, self.nodes)))])[:96]


def kernels_of(graph: fx.Graph) -> list[Kernel]:
    """The kernels of a graph in an order in which each follows what it reads. Views belong to the kernel before them. The graph
    is changed: what several kernels compute is there for each of them."""
    return _Fusion(graph).kernels()


def size_bytes(node: fx.Node) -> int:
    """Bytes of a node's tensor; 0 for other values."""
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


class _Computed(NamedTuple):
    """What a kernel computes for a result: operators and their views in order, and the tensors in memory that these read."""

    nodes: tuple[fx.Node, ...]
    reads: frozenset[fx.Node]

    @property
    def operators(self) -> int:
        """Number of operators that are no views."""
        return sum(not _is_view(node) for node in self.nodes)


class _Loops(NamedTuple):
    """Loops of a kernel: over elements, each of which is a sum of `length` ones. over_rows: whether it sums over rows."""

    elements: int
    length: int = 1
    over_rows: bool = False

    @classmethod
    def of(cls, node: fx.Node) -> _Loops:
        """The loops of a result."""
        value = node.meta["val"]
        written = max(1, (value if isinstance(value, torch.Tensor) else value[0]).numel())
        source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
        if not _reduces(node) or not isinstance(source, torch.Tensor) or not source.dim():
            return cls(written)
        # a softmax or a norm writes all elements of each row that it sums
        length = source.numel() // written if written < source.numel() else source.shape[-1]
        return cls(source.numel() // max(1, length), length, _sums_over_rows(node))

    def fused(self, other: _Loops) -> _Loops | None:
        """The loops of one kernel of both; None if no kernel has both."""
        if self == other:
            return self
        if self.length == 1 or other.length == 1:
            single, sums = (self, other) if self.length == 1 else (other, self)
            fits = sums.length > 1 and not sums.over_rows and single.elements in (sums.elements, sums.elements * sums.length)
            return sums if fits else None
        of_rows, over_rows = (self, other) if other.over_rows else (other, self)
        is_large = of_rows.elements * of_rows.length >= _MIXED_ELEMENTS and of_rows.length <= _MIXED_LENGTH
        has_rows = of_rows.elements >= max(_MIXED_ROWS, 2 * of_rows.length)
        is_same = over_rows.over_rows and not of_rows.over_rows and over_rows[:2] == (of_rows.length, of_rows.elements)
        return of_rows if is_same and is_large and has_rows else None


@dataclass(eq=False)
class _Fused:
    """Results that a generated kernel writes, and tensors in memory that it reads. places: in the graph, of the first result
    and of the last."""

    results: list[fx.Node]
    reads: set[fx.Node]
    loops: _Loops
    places: tuple[int, int]


class _Fusion:
    """Kernels of the results that a compiler writes to memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        self._place = {node: place for place, node in enumerate(graph.nodes)}
        # by operator that a compiler generates: what computes it, and whether it is written
        self._computed: dict[fx.Node, _Computed] = {}
        self._written: set[fx.Node] = set()
        self._library_reads: dict[fx.Node, Sequence[fx.Node]] = {}
        self._owned: set[fx.Node] = set()
        for node in self._nodes:
            if _is_view(node):
                continue
            if _is_fusible(node):
                self._compute(node)
            else:
                self._library_reads[node] = list(map(_base, node.all_input_nodes))

    def kernels(self) -> list[Kernel]:
        """See `kernels_of`."""
        made = [self._own_nodes(group) for group in self._fused()]
        # views belong to the kernel of what they are views of
        of_base: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self._nodes:
            if node not in self._owned:
                of_base[_base(node)].append(node)
        for nodes in made:
            nodes += [view for node in list(nodes) for view in of_base.pop(node, ())]
            nodes.sort(key=self._place.__getitem__)
        ordered = self._ordered([*made, *of_base.values()])
        return [Kernel(nodes, _base(nodes[0]) not in self._library_reads) for nodes in ordered]

    def _compute(self, node: fx.Node) -> None:
        """Notes what computes an operator, and whether its result is written to memory."""
        nodes: dict[fx.Node, None] = {}
        reads: set[fx.Node] = set()
        for read in node.all_input_nodes:
            base = _base(read)
            if base in self._computed and base not in self._written:
                inner = self._computed[base]
                reads |= inner.reads
                nodes |= dict.fromkeys((*inner.nodes, *_views(read)))
            else:
                reads.add(base)
        ordered = sorted(nodes, key=self._place.__getitem__)
        computed = self._computed[node] = _Computed((*ordered, node), frozenset(reads))
        users = list(dict.fromkeys(_readers(node)))
        is_read_elsewhere = not users or any(user.op == "output" or not _is_fusible(user) for user in users)
        is_large = len(reads) > _MOST_READS or computed.operators > _MOST_OPERATORS
        if (
            is_read_elsewhere or is_large or _reduces(node) or not isinstance(node.meta["val"], torch.Tensor)
            or (len(users) > 1 and len(reads) > _MOST_READS_AGAIN)
        ):  # fmt: skip
            self._written.add(node)

    def _fused(self) -> list[_Fused]:
        """Groups of results, fused as long as any can be."""
        groups = {
            node: _Fused([node], set(self._computed[node].reads), _Loops.of(node), (self._place[node],) * 2)
            for node in self._nodes if node in self._written
        }  # fmt: skip
        while True:
            pairs = self._pairs(groups)
            fused = False
            for first, second in pairs:
                one, other = groups[first], groups[second]
                if one is other or (loops := self._can_fuse(one, other, groups)) is None:
                    continue
                one.results += other.results
                one.reads |= other.reads
                one.loops, one.places = loops, (min(one.places[0], other.places[0]), max(one.places[1], other.places[1]))
                groups |= dict.fromkeys(other.results, one)
                fused = True
            if not fused:
                return list(dict.fromkeys(groups.values()))

    def _pairs(self, groups: Mapping[fx.Node, _Fused]) -> list[tuple[fx.Node, fx.Node]]:
        """Results of pairs of groups that read the same tensors, or of which one reads what the other writes, those with the
        most bytes in common first."""
        users: defaultdict[fx.Node, list[_Fused]] = defaultdict(list)
        for group in dict.fromkeys(groups.values()):
            for tensor in dict.fromkeys([*group.results, *group.reads]):
                users[tensor].append(group)
        shared: Counter[tuple[fx.Node, fx.Node]] = Counter()
        for tensor, several in users.items():
            for place, one in enumerate(several):
                for other in several[place + 1 :]:
                    shared[one.results[0], other.results[0]] += size_bytes(tensor)
        return [pair for pair, common_bytes in shared.most_common() if common_bytes]

    def _can_fuse(self, one: _Fused, other: _Fused, groups: Mapping[fx.Node, _Fused]) -> _Loops | None:
        """The loops of a kernel of two groups; None if they cannot be one."""
        loops = one.loops.fused(other.loops)
        if loops is None or len(one.results) + len(other.results) > _MOST_FUSED:
            return None
        is_read = not one.reads.isdisjoint(other.results) or not other.reads.isdisjoint(one.results)
        if is_read and one.loops.over_rows != other.loops.over_rows:
            return None
        return None if self._depends(one, other, groups) or self._depends(other, one, groups) else loops

    def _depends(self, one: _Fused, other: _Fused, groups: Mapping[fx.Node, _Fused]) -> bool:
        """Whether a group depends on another one by way of others."""
        pending = [read for read in one.reads if groups.get(read) not in (one, other)]
        seen = set(pending)
        while pending:
            node = pending.pop()
            group = groups.get(node)
            if group is other:
                return True
            # what ends before the other one begins does not depend on it
            if (self._place[node] if group is None else group.places[1]) > other.places[0]:
                reads = self._library_reads.get(node, ()) if group is None else group.reads
                more = [read for read in reads if read not in seen]
                seen.update(more)
                pending += more
        return False

    def _own_nodes(self, group: _Fused) -> list[fx.Node]:
        """The nodes of a kernel: copies of those that another one has."""
        needed = dict.fromkeys(node for result in group.results for node in self._computed[result].nodes)
        copies: dict[fx.Node, fx.Node] = {}
        nodes: list[fx.Node] = []
        for node in sorted(needed, key=self._place.__getitem__):
            if node in self._owned:
                with self._graph.inserting_after(node):
                    copies[node] = self._graph.node_copy(node, lambda read: copies.get(read, read))
                self._place[copies[node]] = self._place[node]
            else:
                for read in node.all_input_nodes:
                    if read in copies:
                        node.replace_input_with(read, copies[read])
            nodes.append(copies.get(node, node))
        self._owned.update(nodes)
        return nodes

    def _ordered(self, groups: Sequence[list[fx.Node]]) -> list[list[fx.Node]]:
        """Groups in an order of dependence, otherwise that of their last operators."""
        of = {node: number for number, group in enumerate(groups) for node in group}
        before = [{of[read] for node in group for read in node.all_input_nodes if read in of} - {number}
                  for number, group in enumerate(groups)]  # fmt: skip
        done: set[int] = set()
        result: list[list[fx.Node]] = []

        def add(number: int) -> None:
            if number in done:
                return
            done.add(number)
            for earlier in sorted(before[number]):
                add(earlier)
            result.append(groups[number])

        for number in sorted(range(len(groups)), key=lambda number: self._place[groups[number][-1]]):
            add(number)
        return result


def _base(node: fx.Node) -> fx.Node:
    """What a node is a view of; itself if it is no view."""
    while node.op == "call_function" and _is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _views(node: fx.Node) -> Iterator[fx.Node]:
    """Views from a node to what it is a view of."""
    while node.op == "call_function" and _is_view(node):
        yield node
        node = node.all_input_nodes[0]


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Operators that read a node or its views, and the graph's output if it returns one of them."""
    for user in node.users:
        if user.op == "call_function" and _is_view(user):
            yield from _readers(user)
        else:
            yield user


def _short_name(node: fx.Node) -> str:
    """The name of an operator that needs work, such as 'add'."""
    if _is_view(node) or node.op != "call_function" or node.target is operator.getitem:
        return ""
    return operator_name(node)


def operator_name(node: fx.Node) -> str:
    """The name of the operator that a node calls, without namespace and overload; '' for other nodes."""
    target: Any = node.target
    return str(target._schema.name).rpartition("::")[2] if isinstance(target, torch._ops.OpOverload) else ""


def _is_view(node: fx.Node) -> bool:
    """Whether a node does nothing but refer to another one's memory."""
    target: Any = node.target
    if node.op != "call_function" or target is operator.getitem:
        return True
    return isinstance(target, torch._ops.OpOverload) and (
        any(each.alias_info is not None and not each.alias_info.is_write for each in target._schema.returns)
        or is_view(operator_name(node))
    )


def _is_fusible(node: fx.Node) -> bool:
    """Whether a compiler generates the code of a node."""
    target: Any = node.target
    if _is_view(node):
        return all(_is_fusible(read) for read in node.all_input_nodes[:1] if read.op == "call_function")
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list)):
        return False
    if operator_name(node) == "scatter":
        # into a constant, as the gradient of a loss by classes does: compilers compare places instead
        source = node.args[0]
        return isinstance(source, fx.Node) and source.op == "call_function" and operator_name(source) in _CONSTANTS
    return torch.Tag.pointwise in target.tags or operator_name(node) in _ELEMENTWISE or _reduces(node)


def _reduces(node: fx.Node) -> bool:
    return operator_name(node) in _REDUCES


def _sums_over_rows(node: fx.Node) -> bool:
    """Whether a node reduces other dimensions than the last ones."""
    if not _reduces(node):
        return False
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    if not isinstance(source, torch.Tensor) or source.dim() < 2:
        return isinstance(source, torch.Tensor)
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    place = names.index("dim") if "dim" in names else -1
    given: Any = node.kwargs.get("dim", node.args[place] if 0 <= place < len(node.args) else None)
    dimensions: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if not dimensions or not all(isinstance(one, int) for one in dimensions):
        return "dim" in names
    last = sorted(one % source.dim() for one in dimensions)
    return last != list(range(source.dim() - len(last), source.dim()))
