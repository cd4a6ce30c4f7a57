"""Rows of tables of variants of a scenario, with types: what crossover and uneven read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from scaleproof.simulator.analysis.study.evaluate import Row
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.run.run import framework_words


class Variant(Record):
    """A row of a table: the prediction of one variant. problem: why it cannot be trained; results are None then, and the
    framework is ""."""

    samples_per_s: float | None = None
    problem: str = ""
    framework: str = ""
    framework_is_default: bool = False

    @classmethod
    def of(cls, row: Row, **place: Any) -> Self:
        """The variant of a row. place: further columns."""
        columns = {name: row[name] for name in cls.model_fields.keys() & row.keys()}
        # the first of several problems
        return cls(**{**columns, "problem": row.get("error", "").partition(" | ")[0], **place})


def frameworks(variants: Iterable[Variant]) -> str:
    """The frameworks of some variants, such as 'pytorch-ddp, by default'; "" where none can be trained."""
    words = (framework_words(variant.framework, variant.framework_is_default) for variant in variants)
    return " or ".join(dict.fromkeys(filter(None, words)))
