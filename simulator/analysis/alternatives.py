"""Strategies that train the same scenario, by short names such as ring or ring@torchtitan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scaleproof.simulator.cluster.collectives.algorithms import names_for
from scaleproof.simulator.common.errors import FieldError, InputError, NotFoundError
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.parallelism.replicas import DataParallel
from scaleproof.simulator.scenario.schema import Scenario

_SERVERS: Final = re.compile(r"ps-(\d{1,6}|half|all)")
_SCENARIO: Final = "scenario"
_LIBRARY: Final = "allreduce"
_CARRIED: Final = ("overlap", "bucket_bytes")
_USUAL: Final = ("ring", "ps-1", "ps-2", "ps-half", "ps-all")


@dataclass(frozen=True)
class Contender:
    """One strategy by its short name.

    name: `scenario` for the scenario's own strategy; `allreduce` for data parallelism with the algorithm that the library
    chooses; the name of an algorithm for data parallelism with it; `ps-2`, `ps-half` and `ps-all` for parameter servers: 2,
    half as many as workers, as many as workers. kind: of the strategy; None for the scenario's own. algorithm: of data
    parallelism. servers: their number, or half or all. framework: the one named after an @; None for the scenario's, or the
    default of the strategy.
    """

    name: str
    words: str
    kind: type[Strategy] | None = None
    algorithm: str | None = None
    servers: str = ""
    framework: Framework | None = None

    def strategy(self, scenario: Scenario, fields: Mapping[str, Any]) -> Strategy:
        """The strategy for a scenario, with some fields set.

        Other fields are those of the scenario's own strategy if it is of the same kind; otherwise only `overlap` and
        `bucket_bytes` are taken from it, so that the strategies differ in nothing else. Raises FieldError for a field that the
        strategy does not have.
        """
        own = scenario.strategy
        if self.kind is None:
            return _with(own, fields)
        strategy = own
        if not isinstance(own, self.kind):
            carried: dict[str, Any] = {field: getattr(own, field) for field in _CARRIED if field in type(own).model_fields}
            strategy = self.kind.model_validate({"workers": own.training_ranks}).model_copy(update=carried)
        if not self.servers:
            return _with(strategy, {**fields, "algorithm": self.algorithm})
        workers = int(fields.get("workers", own.training_ranks))
        number = {"half": max(1, workers // 2), "all": workers}.get(self.servers) or int(self.servers)
        return _with(strategy, {**fields, "servers": number})


def contenders(scenario: Scenario, names: Sequence[str]) -> list[Contender]:
    """The strategies of these names; if empty, the usual ones, and the scenario's own strategy where it is not among them.

    Raises InputError for an unknown name or one that is given twice.
    """
    if not names:
        plain = isinstance(scenario.strategy, DataParallel | ParameterServer)
        names = _USUAL if plain else (_SCENARIO, *_USUAL)
    twice = {name for name in names if list(names).count(name) > 1}
    if twice:
        raise InputError(f"--strategies: {min(twice)} is given twice; give each once")
    return [_contender(name, scenario) for name in names]


def _contender(name: str, scenario: Scenario) -> Contender:
    """The strategy named 'ring' or 'ring@torchtitan'. Raises InputError for an unknown strategy or framework."""
    own = scenario.strategy
    strategy, at, framework_name = name.partition("@")
    algorithms = names_for("all_reduce")
    servers = _SERVERS.fullmatch(strategy)
    if strategy == _SCENARIO:
        contender = Contender(name, f"{own.kind}, as the scenario has it")
    elif strategy == _LIBRARY:
        contender = Contender(name, "data_parallel, by the algorithm that the library chooses", DataParallel)
    elif strategy in algorithms:
        contender = Contender(name, f"data_parallel, by {strategy} allreduce", DataParallel, strategy)
    elif servers is not None and servers[1] != "0":
        colocated = isinstance(own, ParameterServer) and own.placement == "colocated"
        where = "the workers' nodes" if colocated else "nodes of their own"
        number = {"half": "half as many servers as workers", "all": "as many servers as workers"}.get(servers[1])
        if servers[1] == "1":
            number, where = "1 server", "a node of workers" if colocated else "a node of its own"
        words = f"parameter_server, {number or f'{int(servers[1])} servers'}, on {where}"
        contender = Contender(name, words, ParameterServer, servers=servers[1])
    else:
        known = ", ".join([_SCENARIO, _LIBRARY, *algorithms, "ps-2", "ps-half", "ps-all"])
        raise InputError(f"--strategies: unknown strategy {strategy!r}; choose from {known}")
    if not at:
        return contender
    try:
        return replace(contender, framework=shipped(framework_name))
    except NotFoundError as error:
        raise InputError(f"--strategies: {name!r}: {error}") from None


def _with(strategy: Strategy, fields: Mapping[str, Any]) -> Strategy:
    """The strategy with some fields replaced, by their names in YAML. They are validated with the scenario. Raises FieldError
    for a field that the strategy does not have."""
    names = {info.alias or name: name for name, info in type(strategy).model_fields.items()}
    for field in fields:
        if field not in names:
            raise FieldError(
                ("strategy", field), f"{strategy.kind} has no such field; give a field that all compared strategies have"
            )
    return strategy.model_copy(update={names[field]: value for field, value in fields.items()})
