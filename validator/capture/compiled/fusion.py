"""Kernels of a compiled graph: which operators a compiler for GPUs fuses into one.

As TorchInductor does, operators of single elements and reductions of rows are fused with one another, whatever is between them
and needs no kernel of a library: products, attention, convolutions, sorting and communication stay kernels of their own. What
sums over rows, as gradients of weights and biases do, has another loop: it is fused only with what nothing else reads.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import fx

from scaleproof.simulator.model.torch_operators import is_view

_ATEN: Final = torch.ops.aten
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
# Most operators that are computed again instead of reading their result.
_MOST_REPEATED: Final = 8


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
    is changed: what is cheaper to compute again than to read is."""
    _repeat(graph)
    return _Fusion([node for node in graph.nodes if node.op not in ("placeholder", "output")]).kernels()


def _repeat(graph: fx.Graph) -> None:
    """Computes elements again for each operator that reads them, where that reads no more bytes than the results have."""
    for node in list(graph.nodes):
        chain = _chain(node)
        if len(node.users) < 2 or not chain:
            continue
        readers = [user for user in node.users if user.op == "call_function" and _is_fusible(user) and not _is_view(user)]
        for reader in readers:
            again: dict[fx.Node, fx.Node] = {}
            with graph.inserting_before(reader):
                for each in chain:
                    again[each] = graph.node_copy(each, lambda read, again=again: again.get(read, read))  # type: ignore[misc]
            reader.replace_input_with(node, again[node])
        if not node.users:
            graph.erase_node(node)


def _chain(node: fx.Node) -> list[fx.Node]:
    """The operators of single elements that end with a node, in order, if what they read is no larger than its result."""
    chain: dict[fx.Node, None] = {}
    leaves: dict[fx.Node, None] = {}

    def add(each: fx.Node) -> None:
        if _is_repeatable(each) and len(chain) < _MOST_REPEATED:
            for read in each.all_input_nodes:
                add(read)
            chain[each] = None
        else:
            leaves[each] = None

    add(node)
    return list(chain) if node in chain and sum(map(size_bytes, leaves)) <= size_bytes(node) else []


def _is_repeatable(node: fx.Node) -> bool:
    target: Any = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and (torch.Tag.pointwise in target.tags or operator_name(node) in ("convert_element_type", "_to_copy"))
        and torch.Tag.nondeterministic_seeded not in target.tags
        and not target._schema.is_mutable
    )


def size_bytes(node: fx.Node) -> int:
    """Bytes of a node's tensor; 0 for other values."""
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


class _Fusion:
    """Operators of a graph by the number of library kernels before them: those of one number that are connected are fused."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self._nodes = nodes
        self._place = {node: place for place, node in enumerate(nodes)}
        self._fusible = {node: _is_fusible(node) for node in nodes}
        self._owner = self._owners()
        self._level: dict[fx.Node, int] = {}
        self._parent = {node: node for node in nodes}

    def kernels(self) -> list[Kernel]:
        """See `kernels_of`."""
        for node in self._nodes:
            self._level[node] = max((self._after(read, node) for read in self._reads(node)), default=0)
        for node in self._nodes:
            for read in self._reads(node):
                if self._are_together(read, node):
                    self._parent[self._root(node)] = self._root(read)
        self._sink()
        groups: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self._nodes:
            groups[self._root(node)].append(node)
        return [Kernel(nodes, self._fusible[nodes[0]]) for nodes in self._ordered(list(groups.values()))]

    def _owners(self) -> dict[fx.Node, fx.Node]:
        """Sums over rows, and what nothing else reads before them, by node."""
        owner: dict[fx.Node, fx.Node] = {}
        for node in reversed(self._nodes):
            if self._fusible[node] and _sums_over_rows(node):
                owner[node] = node
            elif self._fusible[node] and not _reduces(node):
                owners = {owner.get(user) for user in node.users}
                if len(owners) == 1 and None not in owners:
                    owner[node] = owners.pop()  # type: ignore[assignment]
        return owner

    def _reads(self, node: fx.Node) -> Iterable[fx.Node]:
        return (read for read in node.all_input_nodes if read in self._place)

    def _after(self, read: fx.Node, node: fx.Node) -> int:
        """The level after a node that is read."""
        if _is_view(node) and not self._fusible[read]:
            # a view of a library's result belongs to its kernel
            return self._level[read]
        is_boundary = not self._fusible[read] or not self._fusible[node] or self._owner.get(read) != self._owner.get(node)
        return self._level[read] + is_boundary

    def _are_together(self, read: fx.Node, node: fx.Node) -> bool:
        return self._level[read] == self._level[node] and (
            _is_view(node) or (self._fusible[read] and self._fusible[node] and self._owner.get(read) == self._owner.get(node))
        )

    def _root(self, node: fx.Node) -> fx.Node:
        while self._parent[node] is not node:
            self._parent[node] = node = self._parent[self._parent[node]]
        return node

    def _sink(self) -> None:
        """Moves operators into the only fused kernel that reads them, so that their results are never written."""
        members: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self._nodes:
            members[self._root(node)].append(node)
        for root in sorted(members, key=lambda root: -self._level[root]):
            own = members[root]
            if not all(self._fusible[node] for node in own) or any(node in self._owner or _reduces(node) for node in own):
                continue
            users = [user for node in own for user in node.users]
            outside = {self._root(user) for user in users if user in self._place} - {self._root(root)}
            escapes = any(user not in self._place for user in users)
            if len(outside) == 1 and not escapes and self._fusible[target := outside.pop()]:
                self._parent[self._root(root)] = target

    def _ordered(self, groups: Sequence[list[fx.Node]]) -> list[list[fx.Node]]:
        """Groups in an order of dependence, otherwise that of their last operators."""
        of = {node: number for number, group in enumerate(groups) for node in group}
        before = [{of[read] for node in group for read in self._reads(node)} - {number} for number, group in enumerate(groups)]
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
