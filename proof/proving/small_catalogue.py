"""A small catalogue for the proof of `fit`: strategies and models whose constants three runs on a few hosts can teach."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

from scaleproof.proof.proving.catalogue import Catalogue
from scaleproof.proof.proving.models import Compute
from scaleproof.proof.proving.networks import DrawnNetwork, star
from scaleproof.proof.proving.strategies import StrategyFamily, microbatches_on


def _model(random: Random, hosts: int, seen: Counter[str]) -> tuple[str, dict[str, Any]]:
    if random.random() < 0.2:
        hidden = random.choice((128, 192, 256))
        return "mlp", {"kind": "mlp", "inputs": 128, "hidden": hidden, "layers": 2 * hosts, "outputs": 64}
    return "gpt", {
        "kind": "gpt",
        "layers": max(2 * hosts, random.choice((4, 6, 8))),
        "hidden": random.choice((64, 96, 128)),
        "heads": 4,
        "vocabulary": random.choice((128, 256)),
        "sequence": random.choice((128, 256)),
    }


def _network(random: Random, hosts: int, compute: Compute, seen: Counter[str]) -> DrawnNetwork:
    return star(random, hosts)


def _families(random: Random, hosts: int, samples: int) -> list[StrategyFamily]:
    microbatches = microbatches_on(hosts)
    staged = {"kind": "pipeline", "stages": hosts, "microbatches": microbatches}
    interleaved = {"schedule": "interleaved_1f1b", "chunks": 2, "overlap_sends": True}
    strategies: dict[str, tuple[str, dict[str, Any]]] = {
        "ring": ("summing", {"kind": "data_parallel", "workers": hosts, "algorithm": "ring", "overlap": False}),
        "ddp": ("summing", {"kind": "data_parallel", "workers": hosts, "bucket": "2 MiB"}),
        "ddp after": ("summing", {"kind": "data_parallel", "workers": hosts, "bucket": "4 MiB", "overlap": False}),
        "gather": ("summing", {"kind": "gather_average", "workers": hosts}),
        "local sgd": ("summing", {"kind": "local_sgd", "workers": hosts, "period": 2}),
        "1 server": ("served", {"kind": "parameter_server", "workers": hosts, "servers": 1}),
        "2 servers": ("served", {"kind": "parameter_server", "workers": hosts, "servers": 2}),
        "gpipe": ("staged", staged | {"schedule": "gpipe"}),
        "1f1b": ("staged", staged | {"schedule": "1f1b"}),
        "interleaved": ("staged", staged | interleaved),
    }
    if hosts >= 4 and hosts % 2 == 0:
        strategies["hybrid"] = ("staged", {"kind": "hybrid", "workers": hosts // 2, "stages": 2, "microbatches": 4})
    named = [StrategyFamily(name, kind, {"strategy": strategy}) for name, (kind, strategy) in sorted(strategies.items())]
    return random.sample(named, len(named))


PLAIN: Final = Catalogue(_model, _network, _families)
