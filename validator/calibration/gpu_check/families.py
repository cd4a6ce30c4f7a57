"""Families of strategies: every way of training on several ranks, as fields of scenarios."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Fields = dict[str, Any]

# Samples of a step over all ranks: divisible by 1, 2, 3, 4, 6 and 8 workers.
SAMPLES: Final = 24
# Numbers of ranks for which there are families, in addition to the number of devices.
RANKS: Final = (2, 4)
MOST_SHARED: Final = RANKS[-1]
ALONE: Final[Fields] = {"strategy": {"kind": "data_parallel", "workers": 1}}


def families(numbers: Iterable[int]) -> dict[str, Fields]:
    """Fields of each family by name, over each of the given numbers of ranks; over 4 ranks there is every family."""
    named = {f"{name}-{ranks}": fields for ranks in numbers for name, fields in _over(ranks).items()}
    return {name: fields for name, fields in named.items() if SAMPLES % fields["strategy"].get("workers", 1) == 0}


def _over(ranks: int) -> dict[str, Fields]:
    """Fields of the families over `ranks` ranks, by name without that number."""
    workers = {"kind": "data_parallel", "workers": ranks}
    served = {"kind": "parameter_server", "workers": ranks - 1, "servers": 1}
    strategies: Fields = {"ddp": workers, "fsdp": workers, "servers": served}
    if ranks == MOST_SHARED:
        strategies |= {
            "ring": {**workers, "algorithm": "ring"},
            "fp16": {**workers, "compression": {"kind": "fp16"}},
            "local-sgd": {"kind": "local_sgd", "workers": ranks, "period": 2},
            "asynchronous": {**served, "mode": "asynchronous"},
        }
    if ranks <= MOST_SHARED:
        schedule = "gpipe" if ranks == 2 else "1f1b"
        strategies["pipeline"] = {"kind": "pipeline", "stages": ranks, "microbatches": 6, "schedule": schedule}
    if ranks % 2 == 0:
        pairs = {"kind": "hybrid", "workers": ranks // 2}
        strategies["tensor"] = {**pairs, "stages": 1, "tensor": 2, "sequence_parallel": True}
        if ranks > 2:
            strategies["hybrid"] = {**pairs, "stages": 2, "microbatches": 2}
    fields = {name: {"strategy": strategy} for name, strategy in strategies.items()}
    fields["fsdp"]["training"] = {"zero": 3}
    return fields
