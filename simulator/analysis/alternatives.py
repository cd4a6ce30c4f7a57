"""Strategies that train the same scenario, by short names such as ring or ring@torchtitan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, names_for
from scaleproof.simulator.common.errors import FieldError, InputError, NotFoundError
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.parallelism.replicas import DataParallel
from scaleproof.simulator.scenario.schema import Scenario

_SERVERS: Final = re.compile(r"ps-(\d{1,6}|half|all)")
_SCENARIO: Final = "scenario"
_AT: Final = "@"
_LIBRARY: Final = "allreduce"
_CARRIED: Final = ("overlap", "bucket_bytes")
_USUAL: Final = ("ring", "ps-1", "ps-2", "ps-half", "ps-all")


@dataclass(frozen=True)
class Contender:
    """One strategy by its short name.

    name: `scenario` for the scenario's own strategy; `allreduce` for data parallelism with the algorithm that the library
    chooses; the name of an algorithm for data parallelism with it; `ps-2`, `ps-half` and `ps-all` for parameter servers: 2,
    half as many as workers, as many as workers. framework: the one named after an @; None for the scenario's, or the default
    of the strategy.
    """

    name: str
    words: str
    framework: Framework | None = None

    def strategy(self, scenario: Scenario, fields: Mapping[str, Any]) -> Strategy:
        """The strategy for a scenario, with some fields set.

        Other fields are those of the scenario's own strategy if it is of the same kind; otherwise only `overlap` and
        `bucket_bytes` are taken from it, so that the strategies differ in nothing else. Raises FieldError for a field that the
        strategy does not have.
        """
        own, (name, _, _) = scenario.strategy, self.name.partition(_AT)
        workers = int(fields.get("workers", own.training_ranks))
        servers = _SERVERS.fullmatch(name)
        if name == _SCENARIO:
            return _with(own, fields)
        if servers is None:
            algorithm = None if name == _LIBRARY else name
            return _with(_of_kind(own, DataParallel), {**fields, "algorithm": algorithm})
        number = {"half": max(1, workers // 2), "all": workers}.get(servers[1]) or int(servers[1])
        return _with(_of_kind(own, ParameterServer), {**fields, "servers": number})


def contenders(scenario: Scenario, names: Sequence[str]) -> list[Contender]:
    """The strategies of these names; if empty, the usual ones, and the scenario's own strategy where it is not among them.

    Raises InputError for an unknown name or one that is given twice.
    """
    own = scenario.strategy
    if not names:
        plain = isinstance(own, DataParallel | ParameterServer)
        names = _USUAL if plain else (_SCENARIO, *_USUAL)
    twice = {name for name in names if list(names).count(name) > 1}
    if twice:
        raise InputError(f"--strategies: {min(twice)} is given twice; give each once")
    return [_contender(name, scenario) for name in names]


def _contender(name: str, scenario: Scenario) -> Contender:
    """The strategy named 'ring' or 'ring@torchtitan'. Raises InputError for an unknown strategy or framework."""
    strategy, at, framework = name.partition(_AT)
    words = _words(strategy, scenario)
    if not at:
        return Contender(name, words)
    try:
        return Contender(name, words, shipped(framework))
    except NotFoundError as error:
        raise InputError(f"--strategies: {name!r}: {error}") from None


def _words(name: str, scenario: Scenario) -> str:
    """A description of the strategy with this name. Raises InputError for an unknown name."""
    servers = _SERVERS.fullmatch(name)
    if name == _SCENARIO:
        return f"{scenario.strategy.kind}, as the scenario has it"
    if name == _LIBRARY:
        return "data_parallel, by the algorithm that the library chooses"
    if name in names_for("all_reduce", list(ALGORITHMS)):
        return f"data_parallel, by {name} allreduce"
    if servers is None or servers[1] == "0":
        known = ", ".join([_SCENARIO, _LIBRARY, *names_for("all_reduce", list(ALGORITHMS)), "ps-2", "ps-half", "ps-all"])
        raise InputError(f"--strategies: unknown strategy {name!r}; choose from {known}")
    colocated = isinstance(scenario.strategy, ParameterServer) and scenario.strategy.placement == "colocated"
    if servers[1] == "1":
        return f"parameter_server, 1 server, on {'a node of workers' if colocated else 'a node of its own'}"
    number = {"half": "half as many servers as workers", "all": "as many servers as workers"}.get(servers[1])
    where = "the workers' nodes" if colocated else "nodes of their own"
    return f"parameter_server, {number or f'{int(servers[1])} servers'}, on {where}"


def _of_kind(own: Strategy, kind: type[Strategy]) -> Strategy:
    """A strategy of this kind with a worker on each GPU, and the fields in `_CARRIED` of the scenario's own."""
    if isinstance(own, kind):
        return own
    carried: dict[str, Any] = {field: getattr(own, field) for field in _CARRIED if field in type(own).model_fields}
    return kind.model_validate({"workers": own.training_ranks}).model_copy(update=carried)


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
