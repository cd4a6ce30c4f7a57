"""Predicted and measured step times of recommenders on an emulated network: tables that workers divide by table, row and
column, rows on parameter servers, and owners of unequal tables by the greedy plan and in turn.

Ranks are hosts of one machine, joined by links of 100 Mbit/s, and compute for real. `scaleproof calibrate` probes four of them
first. Bytes of collectives, and of pushes to each server, are compared with what the placement says. Finished runs in OUT are
kept; words choose the cases that have one in their names. Needs root and iproute2.

Run: sudo python -m benchmarks.sharded_tables OUT [WORD ...]
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from scaleproof.commands.main import main as scaleproof
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.model import Dlrm
from scaleproof.simulator.model.recommender.placement import each, place
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.parameter_server.shards import buckets

_LAB: Final = "netlab-100mbit"
_DIM: Final = 64
_MLPS: Final = {"kind": "dlrm", "dense": 16, "bottom": [_DIM], "top": [64, 1]}
_EQUAL: Final = _MLPS | {"tables": [{"rows": 20_000, "dim": _DIM, "pooling": 4, "count": 8}]}
# In turn, the first of four workers would own all wide tables.
_WIDE: Final = {"rows": 20_000, "dim": 192, "pooling": 4}
_NARROW: Final = {"rows": 20_000, "dim": 16, "pooling": 4, "count": 3}
_UNEQUAL: Final = _MLPS | {"interaction": "cat", "tables": [_WIDE, _NARROW] * 4}
_SAMPLES: Final = 512
_HOSTS: Final = (2, 4, 8)
_SHARDS: Final = ("table", "row", "column")
_MODES: Final[dict[str, dict[str, Any]]] = {
    "synchronous": {},
    "asynchronous": {"mode": "asynchronous"},
    "stale": {"mode": "stale_synchronous", "bound": 2},
}
# Workers and servers; the rows that a worker's samples touch are at most this share of a table.
_SERVED: Final = ((1, 1), (3, 1), (6, 2))
_TOUCHED: Final = 0.055
_ELEMENT_BYTES: Final = 4
_INDEX_BYTES: Final = 8


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and fields of all scenarios."""
    for hosts in _HOSTS:
        for shard in _SHARDS:
            yield f"{shard}-{hosts}", _divided(_EQUAL, hosts, {"shard": shard})
    for hosts in (4, 8):
        in_turn = [number % hosts for number in range(16)]
        yield f"planned-{hosts}", _divided(_UNEQUAL, hosts, {})
        yield f"in-turn-{hosts}", _divided(_UNEQUAL, hosts, {"plan": in_turn})
    for workers, servers in _SERVED:
        for name, mode in _MODES.items():
            strategy = {"kind": "parameter_server", "workers": workers, "servers": servers, "shard": "tensor"}
            strategy |= {"sparse": {"rows": _TOUCHED}, **mode}
            yield f"servers-{workers + servers}-{name}", _fields(_EQUAL, strategy)


def _divided(model: dict[str, Any], workers: int, tables: dict[str, Any]) -> dict[str, Any]:
    return _fields(model, {"kind": "data_parallel", "workers": workers, "tables": {"optimizer": "sgd", **tables}})


def _fields(model: dict[str, Any], strategy: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model, "strategy": strategy, "batch": {"total": _SAMPLES * strategy["workers"]},
        "steps": 16, "training": {"optimizer": "sgd"},
    }  # fmt: skip


def bytes_match(scenario: Scenario, run: Run) -> bool:
    """Whether the collectives of each worker in the last step, or all pushes to each server, have the bytes that the placement
    of tables says."""
    assert run.spans is not None
    moved = run.spans.where((run.spans.stream == Stream.COMMUNICATION) & (run.spans.size_bytes > 0))
    strategy, workers = scenario.strategy, scenario.strategy.training_ranks
    if isinstance(strategy, ParameterServer):
        received = moved.where((moved.phase == Phase.RECEIVE) & (moved.rank >= workers))
        return bool(np.allclose(received.size_bytes, pushed_bytes(scenario, strategy)[received.rank - workers]))
    last = moved.where((moved.phase == Phase.SYNCHRONISE) & (moved.step == moved.step.max()))
    return all(
        Counter(last.where(last.rank == rank).size_bytes) == Counter(_exchanged(scenario, rank)) for rank in range(workers)
    )


def pushed_bytes(scenario: Scenario, strategy: ParameterServer) -> NDArray[np.float64]:
    """Bytes of a push to each server, shape (servers,): the looked-up rows with their numbers, those of the reply's rows, and
    all other parameters."""
    (pushed,) = buckets(
        scenario.model.build_layers(), strategy.servers, strategy.shard, _ELEMENT_BYTES, np.inf, strategy.sparse,
        strategy.workers, scenario.samples_per_worker,
    )  # fmt: skip
    return pushed.pushed_bytes


def _exchanged(scenario: Scenario, rank: int) -> Iterator[float]:
    """Bytes of the tensors that a worker has in the collectives of a step."""
    model, how, workers = scenario.model, scenario.strategy.plan.tables, scenario.strategy.training_ranks
    assert isinstance(model, Dlrm)
    assert how is not None
    tables, parts, samples = each(model.tables), place(model.tables, how, workers), scenario.samples_per_worker
    own = sum(len(part.columns) for part in parts if part.owner == rank)
    yield _ELEMENT_BYTES * sum(layer.trained_parameters for layer in model.build_layers(scenario.strategy.plan.shard))
    if how.shard == "row":
        yield _INDEX_BYTES * workers
        yield _INDEX_BYTES * samples * sum(table.pooling for table in tables)
        # sums of all workers' samples are scattered, and their gradients gathered
        yield from 2 * [_ELEMENT_BYTES * workers * samples * own]
        return
    yield _INDEX_BYTES * samples * sum(tables[part.table].pooling for part in parts)
    yield _ELEMENT_BYTES * samples * sum(len(part.columns) for part in parts)
    if own:
        yield _ELEMENT_BYTES * workers * samples * own


def run(out: Path, words: Sequence[str]) -> None:
    """Calibrates, predicts and measures, and prints the table."""
    out.mkdir(parents=True, exist_ok=True)
    lab = out / "lab.yaml"
    if not lab.exists():
        scaleproof(["calibrate", "--on", "netlab", "--cluster", _LAB, "--out", str(lab)])
    paths = []
    for name, fields in cases():
        if not words or any(word in name for word in words):
            paths.append(out / f"{name}.yaml")
            paths[-1].write_text(yaml.safe_dump({"name": name, "cluster": str(lab.resolve()), **fields}))
    scaleproof(["reconcile", *map(str, paths), "--on", "netlab", "--resume", "--out", str(out / "runs")])
    print("| case | predicted | measured | error | bytes |\n|---|--:|--:|--:|---|")
    found = dict[str, tuple[float, float]]()
    for path in (one for one in paths if (out / "runs" / "runs" / one.stem / "measured" / "run.json").exists()):
        predicted, measured = (load_run(out / "runs" / "runs" / path.stem / side) for side in ("predicted", "measured"))
        found[path.stem] = predicted.step_time_s, measured.step_time_s
        words_of_bytes = "as the placement says" if bytes_match(load(str(path)), measured) else "other"
        error = f"{predicted.step_time_s / measured.step_time_s - 1:+.1%}"
        print(f"| {path.stem} | {predicted.step_time_s:.3f} s | {measured.step_time_s:.3f} s | {error} | {words_of_bytes} |")
    errors = [abs(predicted_s / measured_s - 1) for predicted_s, measured_s in found.values()]
    print(f"median of absolute errors {statistics.median(errors):.1%}, largest {max(errors):.1%}, {len(errors)} runs")
    for hosts in _HOSTS:
        if {f"planned-{hosts}", f"in-turn-{hosts}"} <= found.keys():
            ratios = np.divide(found[f"in-turn-{hosts}"], found[f"planned-{hosts}"])
            print(f"{hosts} hosts: in turn over planned {ratios[0]:.2f} predicted, {ratios[1]:.2f} measured")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    run(options.out, options.words)
