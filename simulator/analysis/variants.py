"""Variants of a scenario, each predicted by itself: the tables that crossover, sensitivity and uneven read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from scaleproof.simulator.common.errors import InputError, one_line
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run, framework_words
from scaleproof.simulator.scenario.schema import Scenario


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of a table: the prediction of one variant. problem: why it cannot be trained; results are None then, and the
    framework is ""."""

    samples_per_s: float | None = None
    problem: str = ""
    framework: str = ""
    framework_is_default: bool = False

    @classmethod
    def predicted(
        cls,
        build: Callable[[], Scenario],
        results: Callable[[Scenario, Run], Mapping[str, Any]] = lambda scenario, run: {},
        predict: Callable[[Scenario], Run] = timed,
        **place: Any,
    ) -> Self:
        """The row of a variant. build: raises InputError for one that cannot be trained. results, place: further columns."""
        try:
            scenario = build()
            run = predict(scenario)
            columns = results(scenario, run)
        except InputError as error:
            return cls(problem=one_line(error), **place)
        return cls(
            samples_per_s=run.samples_per_s,
            framework=run.framework,
            framework_is_default=run.framework_is_default,
            **columns,
            **place,
        )


def frameworks(variants: Iterable[Variant]) -> str:
    """The frameworks of some variants, such as 'pytorch-ddp, by default'; "" where none can be trained."""
    words = (framework_words(variant.framework, variant.framework_is_default) for variant in variants)
    return " or ".join(dict.fromkeys(filter(None, words)))
