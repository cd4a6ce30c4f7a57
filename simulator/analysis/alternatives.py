"""Contenders: strategies that train the same scenario, by short names, such as ring or ring@torchtitan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, names_for
from scaleproof.simulator.common.errors import FieldError, InputError, NotFoundError
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import Strategy
from scaleproof.simulator.strategy.data_parallel.strategy import DataParallel
from scaleproof.simulator.strategy.parameter_server.strategy import ParameterServer

_SERVERS: Final = re.compile(r"ps-(\d{1,6}|half|all)")
_OWN: Final = "scenario"
_IN: Final = "@"
_LIBRARY: Final = "allreduce"
_CARRIED: Final = ("overlap", "bucket_bytes")
_USUAL: Final = ("ring", "ps-1", "ps-2", "ps-half", "ps-all")


@dataclass(frozen=True)
class Contender:
    """One strategy. name: `scenario` is the scenario's own; `allreduce` data parallelism by the algorithm that the library
    chooses; an algorithm's name the same by that; `ps-2`, `ps-half` and `ps-all` so many servers, for the workers there are.
    framework: as it is named after an @; None leaves it to the scenario, or to the default of the strategy."""

    name: str
    words: str
    framework: Framework | None = None

    def strategy(self, scenario: Scenario, fields: Mapping[str, Any]) -> Strategy:
        """For a scenario, with some fields set. What the scenario's own strategy says holds where it is of the same kind; of
        one of another kind alone whether it overlaps and its buckets, so that what is compared differs in nothing else.

        Raises FieldError where it has no such field.
        """
        own, (name, _, _) = scenario.strategy, self.name.partition(_IN)
        workers = int(fields.get("workers", own.workers))
        servers = _SERVERS.fullmatch(name)
        if name == _OWN:
            return _with(own, fields)
        if servers is None:
            algorithm = None if name == _LIBRARY else name
            return _with(_alike(own, DataParallel), {**fields, "algorithm": algorithm})
        number = {"half": max(1, workers // 2), "all": workers}.get(servers[1]) or int(servers[1])
        return _with(_alike(own, ParameterServer), {**fields, "servers": number})


def contenders(scenario: Scenario, names: Sequence[str]) -> list[Contender]:
    """Of these names; if none, the usual ones, and the scenario's own strategy where it is none of them.

    Raises InputError for a name that is none, or comes twice.
    """
    own = scenario.strategy
    if not names:
        plain = isinstance(own, DataParallel | ParameterServer)
        names = _USUAL if plain else (_OWN, *_USUAL)
    twice = {name for name in names if list(names).count(name) > 1}
    if twice:
        raise InputError(f"--strategies: {min(twice)} comes twice; name each once")
    return [_contender(name, scenario) for name in names]


def _contender(name: str, scenario: Scenario) -> Contender:
    """'ring', or 'ring@torchtitan'. Raises InputError for an unknown strategy or framework."""
    strategy, at, framework = name.partition(_IN)
    words = _words(strategy, scenario)
    if not at:
        return Contender(name, words)
    try:
        return Contender(name, words, shipped(framework))
    except NotFoundError as error:
        raise InputError(f"--strategies: {name!r}: {error}") from None


def _words(name: str, scenario: Scenario) -> str:
    """What a name stands for. Raises InputError where it stands for nothing."""
    servers = _SERVERS.fullmatch(name)
    if name == _OWN:
        return f"{scenario.strategy.kind}, as the scenario has it"
    if name == _LIBRARY:
        return "data_parallel, by the algorithm that the library chooses"
    if name in names_for("all_reduce", list(ALGORITHMS)):
        return f"data_parallel, by {name} allreduce"
    if servers is None or servers[1] == "0":
        known = ", ".join([_OWN, _LIBRARY, *names_for("all_reduce", list(ALGORITHMS)), "ps-2", "ps-half", "ps-all"])
        raise InputError(f"--strategies: {name!r} is none; give some of {known}")
    if servers[1].isdecimal():
        return f"parameter_server, {int(servers[1])} server{'s' if int(servers[1]) > 1 else ''}"
    return f"parameter_server, {'half as many' if servers[1] == 'half' else 'as many'} servers as workers"


def _alike(own: Strategy, kind: type[Strategy]) -> Strategy:
    """A strategy of that kind for as many workers, which says what it can of the scenario's own."""
    if isinstance(own, kind):
        return own
    carried: dict[str, Any] = {field: getattr(own, field) for field in _CARRIED if field in type(own).model_fields}
    return kind.model_validate({"workers": own.workers}).model_copy(update=carried)


def _with(strategy: Strategy, fields: Mapping[str, Any]) -> Strategy:
    """With other values of fields, by the names that YAML has for them; a scenario that has it checks them."""
    names = {info.alias or name: name for name, info in type(strategy).model_fields.items()}
    for field in fields:
        if field not in names:
            raise FieldError(("strategy", field), f"a {strategy.kind} has none; give a field that all strategies here have")
    return strategy.model_copy(update={names[field]: value for field, value in fields.items()})
