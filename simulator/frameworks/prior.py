"""Prior over training software that is not named, or that does not ship: frameworks that run the job, of its kind and year.

`scenarios/uncertainty/software.yaml` has each framework's time over that without software costs (`ideal`), as the mean of
reference jobs, and its `use`; `benchmarks/unknown_software.py` writes it. The framework in the middle of these times stands for
unknown software, and their spread is a part of the prediction interval.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.frameworks.framework import Kind, Prevalence

FILE: Final = catalog.ROOT / "uncertainty" / "software.yaml"
# Fields of the file with times with flash attention and without.
TIMES: Final = {True: "flash", False: "scores"}
_TAILS: Final = (0.05, 0.95)
# Words of a name that say which kind of software it is.
_KINDS: Final[tuple[tuple[str, Kind], ...]] = (
    (r"jax|pax|flax|t5x|xla|tpu|easylm|levanter", "jax"),
    (r"paddle|fleet", "paddle"),
    (r"tensorflow|keras|\btf\b", "tensorflow"),
    (r"megatron|nemo|mcore", "megatron"),
    (r"deepspeed|zero", "deepspeed"),
    (r"compile|titan", "compiled"),
    (r"torch|fsdp|hugging|lightning|accelerate|composer", "eager"),
)
_YEAR: Final = re.compile(r"(?<!\d)20[12]\d(?!\d)")


class Software(NamedTuple):
    """What is known of software from the words for it. None: not known."""

    kind: Kind | None = None
    year: int | None = None

    @classmethod
    def from_words(cls, words: str) -> Software:
        """The kind and the year that words such as 'PaddlePaddle, 2021' name."""
        kind = next((kind for pattern, kind in _KINDS if re.search(pattern, words.lower())), None)
        years = _YEAR.findall(words)
        return cls(kind, int(years[0]) if years else None)


class _Member(NamedTuple):
    """What the file says of a framework."""

    use: Prevalence
    supports: frozenset[str]
    times: Mapping[bool, float]


@functools.cache
def _members() -> dict[str, _Member]:
    """The frameworks in the file, whose own files need not be read then."""
    data: dict[str, dict[str, Any]] = yaml_file.shipped(FILE)
    return {
        name: _Member(
            Prevalence.model_validate(one["use"]),
            frozenset(one["supports"]),
            {flash: one[field] for flash, field in TIMES.items() if field in one},
        )
        for name, one in data.items()
    }


@functools.cache
def relative_times(flash: bool) -> dict[str, float]:
    """Time of each framework over that of `ideal`, by name. flash: with flash attention, of those that have it."""
    return {name: member.times[flash] for name, member in _members().items() if flash in member.times}


class SoftwarePrior(NamedTuple):
    """Frameworks that unknown software may be like, the fastest first, with their times over that of `ideal`, and weights that
    add up to 1."""

    names: tuple[str, ...]
    times: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(cls, needed: frozenset[str], flash: bool, known: Software) -> SoftwarePrior:
        """The frameworks with all needed features of a kind and year; of all kinds, or all years, where none is left of one.

        flash: whether attention is flash attention.
        """
        times = relative_times(flash)
        uses = {name: member.use for name, member in _members().items() if name in times and needed <= member.supports}
        kind, year = known
        uses = {name: use for name, use in uses.items() if use.kind == kind} or uses
        uses = {name: use for name, use in uses.items() if year and use.years[0] <= year <= use.years[1]} or uses
        names = sorted(uses, key=lambda name: (times[name], name))
        total = math.fsum(use.weight for use in uses.values())
        return cls(tuple(names), tuple(times[name] for name in names), tuple(uses[name].weight / total for name in names))

    @property
    def middle(self) -> str:
        """The framework in the middle of the times, by weight."""
        return self.names[int(np.searchsorted(np.cumsum(self.weights), 0.5 - 1e-9))]

    def log_ends(self, time: float) -> tuple[float, float]:
        """Logarithms of the ends of the 90 % interval of the times, over a time."""
        middles = np.cumsum(self.weights) - np.array(self.weights) / 2
        low, high = np.interp(_TAILS, middles, np.log(self.times)) - math.log(time)
        return min(0.0, float(low)), max(0.0, float(high))

    def nearest(self, time: float, count: int = 3) -> Sequence[str]:
        """The frameworks whose times are nearest to a time that none of them has alone."""
        ordered = sorted(zip(self.names, self.times, strict=True), key=lambda one: abs(math.log(one[1] / time)))
        return [name for name, _ in ordered[1 : count + 1]]
