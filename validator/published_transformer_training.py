"""Published training runs of transformers, predicted: each row as the scenario that its framework makes of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from simulator import library
from simulator.baseline import STEPS
from simulator.cluster import Cluster
from simulator.cluster.device import Precision
from simulator.engine import simulate
from simulator.errors import InputError, ScaleproofError
from simulator.memory import memory
from simulator.memory.software import DEEPSPEED, DEEPSPEED_BF16, Software
from simulator.model import AnyModel, Gpt, Llama
from simulator.program import Program
from simulator.scenario import Scenario, load_cluster
from simulator.spread import spread
from validator.framework_constants import CALIBRATIONS
from validator.framework_exchanges import beside
from validator.framework_times import Work, device_for
from validator.frameworks import Framework, framework_of
from validator.published import COARSE, Prediction

Row = Mapping[str, str]

CALIBRATION: Final[tuple[str, ...]] = ()
# What the constants of `predict_calibrated` were found on.
CALIBRATED: Final = tuple(f"{family}: {', '.join(one.rows)}" for family, one in CALIBRATIONS.items())
# What a row says of itself, and of what came of it.
_NO_INPUTS: Final = ("id", "step_time_s", "memory_GiB", "fits", "measured_as", "note", "source")
# What a blank is taken for, beside precision and words, which are the framework's, and a microbatch, which is as large as fits:
# what most of the tables' runs have. Words may be said to be assumed by who made the table, which is a blank too.
_ASSUMED: Final = {"recompute": "none", "zero_stage": "0", "optimizer": "adam"}
_BLANK: Final = ("", "?")
_ASSUMED_WORDS: Final = "vocabulary assumed"
_PRECISIONS: Final[dict[str, Precision]] = {"fp8": "bf16", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "tf32"}


def predict(row: Row) -> list[Prediction]:
    """A row's step time, and its memory and whether it fits where the row says so; nothing is fitted."""
    return list(_predictions(row, None))


def predict_calibrated(row: Row) -> list[Prediction]:
    """The same with constants that were found on the rows of `CALIBRATED`, which are left out."""
    name = row.get("source_set") or "not named"
    try:
        framework = framework_of(_dated(row))
    except ScaleproofError as error:
        return [Prediction(name, skipped=str(error))]
    calibration = CALIBRATIONS.get(framework.family)
    if calibration is None:
        return predict(row)
    if row.get("id") in calibration.rows:
        return [Prediction(name, skipped="constants were fitted on it")]
    return list(_predictions(row, framework.with_constants(calibration.constants)))


def _predictions(row: Row, framework: Framework | None) -> Iterator[Prediction]:
    """With the framework that the row names, or with another. What cannot be predicted is skipped with its reason."""
    name = row.get("source_set") or "not named"
    inputs = tuple(value for column, value in row.items() if column not in _NO_INPUTS)
    pairs = row.get("model", ""), row.get("gpus", "")
    try:
        run = _read(row, framework or framework_of(_dated(row)))
        scenario = run.scenario()
        held = memory(scenario, run.software)
        skipped = _not_timed(row)
        predicted_s, interval_s = (math.nan, None) if skipped else _timed(scenario, fitted=framework is not None)
        measured_s = math.nan if skipped else _positive(row["step_time_s"])
        measured_bytes = _positive(row["memory_GiB"]) * 2**30 if row.get("memory_GiB") else math.nan
    except ScaleproofError as error:
        yield Prediction(name, skipped=str(error).partition(";")[0])
        return
    except (KeyError, ValueError):
        yield Prediction(name, skipped="no run that can be read")
        return
    yield Prediction(name, predicted_s, measured_s, skipped, run.assumed, inputs, pairs, interval_s, nodes=run.nodes)
    if row.get("memory_GiB"):
        told_bytes = max(getattr(rank, run.framework.told) for rank in held.ranks)
        yield Prediction(f"{name} memory", told_bytes, measured_bytes, "", run.assumed, inputs, pairs, of="memory")
    if row.get("fits") in ("yes", "no"):
        right = held.fits == (row["fits"] == "yes")
        # an error is 0 or 1, and its mean the share of rows that are wrong
        yield Prediction(f"fits: {row['fits']}", 1.0 if right else 2.0, 1.0, inputs=inputs, of="fit")


def _not_timed(row: Row) -> str:
    """Why a row has no time to compare with, if so."""
    if row.get("fits") == "no":
        return "ran out of memory"
    return "" if row.get("step_time_s") else "no time"


def row_step_s(row: Row, framework: Framework) -> float:
    """Seconds of a row's steady step in a framework. Raises what `predict` skips a row for."""
    return step_s(_read(row, framework).scenario())


def step_s(scenario: Scenario, program: Program | None = None) -> float:
    """Seconds of a steady step. program: what the scenario compiles to, where that is there."""
    timeline = simulate(program or scenario.strategy.compile(scenario.job()), STEPS)
    return timeline.run(scenario="", strategy=scenario.strategy.kind, samples=scenario.total_samples).step_time_s


def _timed(scenario: Scenario, fitted: bool) -> tuple[float, tuple[float, float] | None]:
    """The same, and where it is with a probability of 90 %: by what is said of devices that nothing is fitted to."""
    program = scenario.strategy.compile(scenario.job())
    predicted_s = step_s(scenario, program)
    if fitted:
        return predicted_s, None
    told = spread(scenario, program, COARSE)
    return predicted_s, (told.low * predicted_s, told.high * predicted_s)


@dataclass(frozen=True)
class _Run:
    """What a row describes. microbatch: sequences, None for as many as fit. assumed: columns that were blank."""

    framework: Framework
    model: AnyModel
    cluster: Cluster
    strategy: Mapping[str, Any]
    batch: int
    microbatch: int | None
    work: Work
    zero: int
    assumed: tuple[str, ...]

    def scenario(self) -> Scenario:
        """Raises ScaleproofError where it cannot be so."""
        if self.microbatch is not None:
            return self._of(self.microbatch)
        workers = self.strategy["workers"]
        each = self.batch // workers
        sizes = [size for size in range(each, 0, -1) if each % size == 0 and each // size >= self.strategy.get("stages", 1)]
        fitting = (scenario for size in sizes if memory(scenario := self._of(size), self.software).fits)
        return next(fitting, self._of(1))

    @property
    def nodes(self) -> int:
        return -(-self.work.ranks // self.cluster.node.devices)

    @property
    def software(self) -> Software:
        """What holds the memory, with this row's precision and recomputation."""
        framework, held = self.framework, self.framework.memory
        if self.work.recompute == "selective" and framework.again:
            held = replace(held, products="every second")
        return replace(held, input_bytes=framework.fp8_input_bytes) if self.work.fp8 else held

    def _of(self, microbatch: int) -> Scenario:
        """With microbatches of so many sequences, timed as the framework computes them."""
        workers = self.strategy["workers"]
        microbatches, rest = divmod(self.batch, workers * microbatch)
        if rest or not microbatches:
            raise InputError("microbatches do not divide the batch")
        plain = self._with(microbatches, self.cluster)
        job = plain.job()
        work = replace(self.work, samples=microbatch)
        device = device_for(self.cluster.device, self.framework, job.layers, work, beside(plain.strategy.plan, job))
        return self._with(microbatches, self.cluster.model_copy(update={"device": device}))

    def _with(self, microbatches: int, cluster: Cluster) -> Scenario:
        # selective recomputation is of scores where there are any; else the framework's times have it
        kept = self.work.recompute if self.work.recompute != "selective" or self.framework.attention == "scores" else "none"
        return Scenario(
            model=self.model,
            cluster=cluster,
            strategy={**self.strategy, "microbatches": microbatches},
            batch={"total": self.batch},
            training={
                "precision": self.work.precision, "optimizer": self.work.optimizer, "zero": self.zero, "recompute": kept,
            },
        )  # fmt: skip


def _read(row: Row, framework: Framework) -> _Run:
    """Raises KeyError and ValueError where a row cannot be read, ScaleproofError for what is not known."""
    if _ASSUMED_WORDS in row.get("note", ""):
        row = {**row, "vocab": ""}
    words = framework.vocabulary // _whole(row, "tp") * _whole(row, "tp")
    known = {"vocab": str(words), **_ASSUMED, "precision": framework.precision, "microbatch_seqs": ""}
    assumed = tuple(column for column in known if row[column] in _BLANK)
    row = {**row, **{column: known[column] for column in assumed}}
    if row["precision"] not in _PRECISIONS:
        raise InputError(f"unknown precision: {row['precision']}")
    if _whole(row, "ep") > 1:
        raise InputError("experts that the table does not describe")
    work = Work(
        ranks=_whole(row, "gpus"),
        samples=1,
        precision=_PRECISIONS[row["precision"]],
        optimizer=row["optimizer"],  # type: ignore[arg-type]
        recompute=row["recompute"],
        fp8=row["precision"] == "fp8",
        fp8_recipe=row.get("fp8_recipe", ""),
    )
    if framework.memory is DEEPSPEED and row["precision"] == "bf16":
        framework = replace(framework, memory=DEEPSPEED_BF16, gradient_bytes=4)
    return _Run(
        framework,
        _model(row, framework),
        _cluster(row["cluster"], _whole(row, "gpus")),
        _strategy(row, framework),
        _whole(row, "global_batch_seqs"),
        _whole(row, "microbatch_seqs") if row["microbatch_seqs"] else None,
        work,
        _zero(row, framework),
        assumed,
    )


def _dated(row: Row) -> str:
    """The software, and the year and month that its source names, if so."""
    date = re.search(r"20\d\d-?(0[1-9]|1[0-2])(?!\d)", row.get("source", ""))
    return f"{row.get('software', '')} {date[0] if date else ''}"


def _whole(row: Row, column: str, blank: int = 1, least: int = 1) -> int:
    """Raises ValueError for what is no whole number, or too small."""
    found = int(row[column] or blank)
    if found < least:
        raise ValueError(f"{column}: {found} is less than {least}")
    return found


def _positive(text: str) -> float:
    """Raises ValueError for what is not."""
    found = float(text)
    if not 0 < found < math.inf:
        raise ValueError(f"{text} is not a positive number")
    return found


def _model(row: Row, framework: Framework) -> AnyModel:
    """Gated MLPs tell a Llama; the rest are GPTs, whose details are the framework's."""
    fields: dict[str, Any] = {
        "layers": _whole(row, "layers"), "hidden": _whole(row, "hidden"), "heads": _whole(row, "heads"),
        "key_heads": _whole(row, "kv_heads", int(row["heads"])), "vocabulary": int(row["vocab"]),
        "feedforward": _whole(row, "ffn_hidden", 4 * int(row["hidden"])), "sequence": int(row["seq_len"]),
    }  # fmt: skip
    if row["gated_mlp"] == "yes":
        return Llama(**fields, flash=framework.attention != "scores")
    return Gpt(**fields, **framework.model)


@cache
def _cluster(name: str, devices: int) -> Cluster:
    """A shipped cluster, of at least so many devices."""
    cluster = load_cluster(library.find_part("cluster", name, Path()))
    return cluster.model_copy(update={"nodes": max(-(-devices // cluster.node.devices), cluster.nodes)})


def _zero(row: Row, framework: Framework) -> int:
    return max(_whole(row, "zero_stage", 0, 0), framework.zero)


def _strategy(row: Row, framework: Framework) -> dict[str, Any]:
    tensor, stages, context = (_whole(row, column) for column in ("tp", "pp", "cp"))
    chunks = _whole(row, "virtual_stages")
    return {
        "kind": "hybrid",
        "workers": _whole(row, "dp"),
        "stages": stages,
        "tensor": tensor,
        "context": context,
        "context_by": framework.context_by if context > 1 else "ring",
        "chunks": chunks,
        "schedule": "interleaved_1f1b" if chunks > 1 else "1f1b",
        "sequence_parallel": row["sequence_parallel"] == "yes" and tensor > 1,
        "overlap": framework.overlap,
        "overlap_gather": framework.overlap_gather and _zero(row, framework) in (1, 2),
        "overlap_tensor": framework.overlap_tensor and tensor > 1 and row["sequence_parallel"] == "yes",
        "overlap_sends": framework.overlap_sends,
        "split_sends": framework.split_sends and tensor > 1 and stages > 1,
        "gradient_bytes": framework.gradient_bytes,
    }
