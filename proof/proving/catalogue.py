"""What cases are drawn from: models, networks and strategies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from scaleproof.proof.proving.models import Compute, drawn_model
from scaleproof.proof.proving.networks import DrawnNetwork, drawn_network
from scaleproof.proof.proving.strategies import StrategyFamily, families_on

_OPTIMIZERS: Final = ("sgd", "momentum", "adam")


def _no_training(random: Random) -> dict[str, Any]:
    return {}


class Catalogue(NamedTuple):
    """Draws the parts of a group of cases.

    model: a model and the name of its family, for a number of hosts that train and numbers of earlier draws by name; network:
    likewise, for a kind of compute too. families: of strategies, in the order in which they are tried, for a number of hosts
    and of samples of a step. training: fields that all scenarios of a group have. mixes: whether rare families are tried first.
    patience: number of draws after which other hosts are tried, since few strategies suit many hosts.
    """

    model: Callable[[Random, int, Counter[str]], tuple[str, dict[str, Any]]]
    network: Callable[[Random, int, Compute, Counter[str]], DrawnNetwork]
    families: Callable[[Random, int, int], list[StrategyFamily]]
    training: Callable[[Random], dict[str, Any]] = _no_training
    mixes: bool = False
    patience: int = 20


def _shuffled(random: Random, hosts: int, samples: int) -> list[StrategyFamily]:
    families = families_on(random, hosts, samples)
    return random.sample(families, len(families))


def _optimizer(random: Random) -> dict[str, Any]:
    return {"optimizer": random.choice(_OPTIMIZERS)}


MEASURABLE: Final = Catalogue(drawn_model, drawn_network, _shuffled, _optimizer, mixes=True, patience=5)
