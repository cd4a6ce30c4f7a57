"""Users' modules in training: as they are, or divided into the layers that the simulator has traced.

A divided module is exported by `torch.export`, and the operators of its graph are assigned to the layers whose modules they
belong to. Operators whose results depend on input data alone, such as masks, and are read by other layers, form a prelude that
each rank computes by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Traced
from scaleproof.simulator.model.torch_operators import sparse_lookup
from scaleproof.simulator.model.tracing.torch_module import trace_of
from scaleproof.simulator.model.tracing.user_function import UserModel, checked, loss_of, user_errors, user_function
from scaleproof.validator.train.models.wiring import DATA, Tie, Wire, Wiring


class ModuleLayers(NamedTuple):
    """A module as layers. prelude: computes, from all tensors of a batch, further ones that layers read as data; or None."""

    layers: Sequence[nn.Module]
    wiring: Wiring
    ties: Sequence[Tie]
    prelude: nn.Module | None
    derived: int


class WithLoss(nn.Module):
    """A user's module with its loss: reads inputs and targets, and returns one number."""

    def __init__(self, source: str, user: UserModel) -> None:
        super().__init__()
        self.source, self.user, self.count = source, user._replace(module=None), len(user.inputs)
        self.model = user.module

    def forward(self, *tensors: Tensor) -> Tensor:
        """The loss of a batch."""
        outputs = self.model(*tensors[: self.count])
        return loss_of(torch, self.source, self.user, outputs, tensors[self.count :])  # type: ignore[no-any-return]


def user_model(source: str, seed: int, dtype: torch.dtype) -> UserModel:
    """The user's module with its initial parameters, which depend on the seed alone, and its examples in `dtype`.

    Parameters that require gradients are trained, except those that do not affect the loss; the others are buffers.
    """
    folder = Path.cwd()
    with user_function(source, folder) as (_, function), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed * 1_000_003)
        with user_errors(source, "its function", folder):
            user = checked(torch, source, function())
        user.module.train().to(dtype)
        inputs, targets = (tuple(_cast(one, dtype) for one in group) for group in (user.inputs, user.targets))
        user = user._replace(inputs=inputs, targets=targets)
        with user_errors(source, "its training on the example inputs", folder):
            _freeze_unused(WithLoss(source, user), [*user.inputs, *user.targets])
    return user


class _Outputs(WithLoss):
    """A user's module without its loss."""

    def forward(self, *tensors: Tensor) -> Any:
        """The module's outputs."""
        return self.model(*tensors)


def divided(source: str, user: UserModel, samples: int, loss: nn.Module | None = None) -> ModuleLayers:
    """The layers of a user's module for batches of `samples`. loss: reads the module's outputs in the last layer; that of the
    user if None. Raises InputError where it cannot be divided."""
    whole = WithLoss(source, user) if loss is None else _Outputs(source, user)
    examples = tuple(_repeated(one, samples) for one in (*user.inputs, *user.targets))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(whole, examples, strict=False).module(check_guards=False)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        message = "torch.export cannot divide it into layers; give data_parallel without zero and recomputation"
        raise InputError(f"model.source: {source}: {message} ({type(error).__name__}: {text})") from None
    if loss is not None:
        _add_loss(exported, loss)
    modules = trace_of(source, Path.cwd()).modules
    return _Division(exported, modules, dict(whole.named_parameters())).result()


def _add_loss(exported: fx.GraphModule, loss: nn.Module) -> None:
    """Adds a loss of an exported module's outputs to it, in their place."""
    output = next(node for node in exported.graph.nodes if node.op == "output")
    exported.add_module("contrast", loss)
    with exported.graph.inserting_before(output):
        output.args = (exported.graph.call_module("contrast", tuple(output.args[0])),)


def examples(source: str) -> list[NDArray[Any]]:
    """Example inputs and targets of a user's module, which are the values that random samples are drawn from."""
    user = user_model(source, 0, torch.float32)
    return [one.detach().cpu().numpy() for one in (*user.inputs, *user.targets)]


def looked_up(
    source: str, dtype: torch.dtype, tables: Sequence[str], batches: Iterable[Sequence[Tensor]]
) -> Iterator[list[Tensor]]:
    """For each batch, the numbers of the rows that a user's module in `dtype` looks up in each of its `tables`, names of
    parameters. They depend on the batch alone, so that any parameters do."""
    module, inputs, *_ = user_model(source, 0, dtype)
    tables_at = {module.get_parameter(name).data_ptr(): place for place, name in enumerate(tables)}
    found: list[list[Tensor]] = []

    class Lookups(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            lookup = sparse_lookup(function, args, kwargs)
            if lookup is not None and lookup[0].data_ptr() in tables_at:
                found[tables_at[lookup[0].data_ptr()]].append(lookup[1].flatten())
            return function(*args, **(kwargs or {}))

    for batch in batches:
        found[:] = [[] for _ in tables]
        with torch.no_grad(), torch.random.fork_rng(devices=[]), Lookups():  # type: ignore[no-untyped-call]
            module(*(one.cpu() for one in batch[: len(inputs)]))
        yield [torch.cat(rows) for rows in found]


def drawn(example: NDArray[Any], samples: int, generator: np.random.Generator) -> NDArray[Any]:
    """Random samples like an example: its elements in another order, or its rows if they are truth values."""
    if example.dtype == bool:
        return example[generator.integers(len(example), size=samples)]
    return generator.choice(example.reshape(-1), size=(samples, *example.shape[1:]))


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _repeated(example: Tensor, samples: int) -> Tensor:
    """An example with another number of samples."""
    times = -(-samples // len(example))
    return torch.cat([example] * times)[:samples].clone()


def _freeze_unused(whole: WithLoss, tensors: Sequence[Tensor]) -> None:
    """Makes parameters without gradients buffers: frozen ones, and those that do not affect the loss."""
    reached: set[int] = set()
    left, seen = [whole(*tensors).grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            reached.add(id(node.variable))
        left += [following for following, _ in node.next_functions]
    for module in whole.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in reached:
                delattr(module, name)
                module.register_buffer(name, parameter.detach(), persistent=False)


class _Division:
    """Divides an exported graph. modules: by layer, names of the user's modules. parameters: the module's."""

    def __init__(
        self, exported: fx.GraphModule, modules: Sequence[Sequence[str]], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self._exported, self._count = exported, len(modules)
        self._nodes = [node for node in exported.graph.nodes if node.op not in ("placeholder", "output")]
        self._data = [node for node in exported.graph.nodes if node.op == "placeholder"]
        self._output = next(node for node in exported.graph.nodes if node.op == "output").args[0]
        self._trained = {name for name, parameter in parameters.items() if parameter.requires_grad}
        self._layer = dict(self._layers({name: number for number, names in enumerate(modules) for name in names}))
        self._prelude = self._shared_by_data()

    def result(self) -> ModuleLayers:
        """The layers with their wiring."""
        derived = {node: len(self._data) + place for place, node in enumerate(self._read_prelude())}
        wire_of: dict[fx.Node, Wire] = {node: Wire(DATA, place) for place, node in enumerate(self._data)}
        wire_of |= {node: Wire(DATA, place) for node, place in derived.items()}
        layers, wiring, outputs = [], [], self._outputs()
        for number in range(self._count):
            for place, node in enumerate(outputs[number]):
                wire_of[node] = Wire(number, place)
            own = [node for node in self._nodes if self._layer[node] == number and node not in self._prelude]
            read = self._read(own)
            layers.append(self._module(own, read, outputs[number]))
            wiring.append(tuple(wire_of[node] for node in read))
        prelude = self._module([n for n in self._nodes if n in self._prelude], self._data, list(derived)) if derived else None
        return ModuleLayers(layers, wiring, list(_ties(layers)), prelude, len(derived))

    def _layers(self, number_of: Mapping[str, int]) -> Iterator[tuple[fx.Node, int]]:
        """The layer of each operator: that of its module, or of the one that ran last. Attributes have that of their reader."""
        current = 0
        for node in self._nodes:
            if node.op != "get_attr":
                paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
                numbers = [number_of[name] for name in (path.removeprefix("model.") for path in paths) if name in number_of]
                # a module without parameters may run again later
                current = max(current, numbers[-1] if numbers else current)
                yield node, current
        for node in self._nodes:
            if node.op == "get_attr":
                yield node, -1

    def _shared_by_data(self) -> set[fx.Node]:
        """Operators without trained parameters among all that they depend on, if other layers read their results, and all that
        they depend on."""
        constant = set(self._data)
        for node in self._nodes:
            is_trained = node.op == "get_attr" and str(node.target) in self._trained
            if not is_trained and all(source in constant for source in node.all_input_nodes):
                constant.add(node)
        crossing = [
            node for node in self._nodes if node in constant and node.op != "get_attr" and self._is_read_elsewhere(node)
        ]
        found: set[fx.Node] = set()
        while crossing:
            node = crossing.pop()
            if node not in found and node not in self._data:
                found.add(node)
                crossing += node.all_input_nodes
        return {node for node in found if node.op != "get_attr"}

    def _is_read_elsewhere(self, node: fx.Node) -> bool:
        return any(self._layer.get(user, self._layer[node]) != self._layer[node] for user in node.users)

    def _read_prelude(self) -> list[fx.Node]:
        """Results of the prelude that layers read."""
        return [n for n in self._nodes if n in self._prelude and any(u not in self._prelude for u in n.users)]

    def _outputs(self) -> list[list[fx.Node]]:
        """By layer, results that later layers read, and at least one; of the last layer, the loss."""
        result: list[list[fx.Node]] = [[] for _ in range(self._count)]
        loss = self._output[0] if isinstance(self._output, list | tuple) else self._output
        for node in self._nodes:
            if node in self._prelude or node.op == "get_attr":
                continue
            number = self._layer[node]
            if node is loss or any(self._layer.get(user, number) != number for user in node.users):
                result[number].append(node)
        if result[-1] != [loss]:
            raise InputError(
                "model.source: its last layer does not compute the loss; return it from the module, or give a loss"
            )
        return result

    def _read(self, own: Sequence[fx.Node]) -> list[fx.Node]:
        """What operators read of other layers, of the prelude and of data."""
        inside = set(own)
        sources = (source for node in own for source in node.all_input_nodes)
        return list(dict.fromkeys(source for source in sources if source not in inside and source.op != "get_attr"))

    def _module(self, own: Sequence[fx.Node], read: Sequence[fx.Node], written: Sequence[fx.Node]) -> nn.Module:
        """A module of some operators."""
        graph = fx.Graph()
        copies = {node: graph.placeholder(f"x{place}") for place, node in enumerate(read)}

        def copy_of(node: fx.Node) -> fx.Node:
            if node not in copies:
                # an attribute
                copies[node] = graph.node_copy(node, copy_of)
            return copies[node]

        for node in own:
            copies[node] = graph.node_copy(node, copy_of)
        results = tuple(copies[node] for node in written)
        graph.output(results[0] if len(results) == 1 else results)
        return fx.GraphModule(self._exported, graph)


def _ties(layers: Sequence[nn.Module]) -> Iterator[Tie]:
    """Parameters that occur in several layers."""
    owners: dict[nn.Parameter, tuple[int, str]] = {}
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            owner = owners.setdefault(parameter, (number, name))
            if owner[0] != number:
                yield Tie(number, name, *owner)


def check_divisible(model: Traced) -> None:
    """Raises InputError where a user's module cannot be divided into layers that run on different ranks, or by themselves."""
    repeated = trace_of(model.source, Path.cwd()).repeated
    if repeated is not None:
        cycle = f"{repeated[0]} runs again after {repeated[1]}, so that layers form a cycle and cannot be on ranks of their own"
        raise InputError(f"model.source: {model.source}: {cycle}; give data_parallel without zero, or another module")


def check_dense(model: Traced) -> None:
    """Raises InputError where a layer of a user's module has sparse gradients, which ranks do not sum."""
    for name, layer in user_model(model.source, 0, torch.float32).module.named_modules():
        if getattr(layer, "sparse", False) is True:
            message = f"{name or 'the module'} has sparse gradients, which ranks do not sum; build it with sparse=False"
            raise InputError(f"model.source: {model.source}: {message}")


def check_rows(model: Traced) -> None:
    """Raises InputError where servers cannot update rows of a user's module by its own optimizer."""
    if user_model(model.source, 0, torch.float32).optimizer is not None:
        message = "its optimizer may change rows that have no gradient, which workers do not pull; return none, for sgd"
        raise InputError(f"model.source: {model.source}: {message}, or build it with sparse=False")


def check_shardable(model: Traced) -> None:
    """Raises InputError where torch's fully_shard cannot shard a parameter of a user's module."""
    for name, parameter in user_model(model.source, 0, torch.float32).module.named_parameters():
        if parameter.dim() == 0:
            problem = f"{name} is a single number, which fully_shard cannot shard; make it a vector of length 1"
        elif not parameter.is_contiguous():
            problem = f"{name} is not contiguous in memory, so that fully_shard cannot shard it; call contiguous()"
        else:
            continue
        raise InputError(f"model.source: {model.source}: {problem}, or give zero 2")
