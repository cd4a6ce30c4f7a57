"""A results folder as reconcile leaves it: four families on two and four training ranks, and one that failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase, Spans, Stream
from scaleproof.simulator.run.breakdown import from_spans
from scaleproof.simulator.run.files import save
from scaleproof.simulator.run.records import Scaling
from scaleproof.simulator.run.run import Origin, Run

STEPS = 5
_COLUMNS = (
    "rank", "step", "stream", "phase", "stage", "microbatch", "arrival_s", "start_s", "end_s", "size_bytes",
)  # fmt: skip
# scenario, family, training ranks, servers, measured step time, error of the prediction
CASES = (
    ("ring-2", "data_parallel", 2, 0, 0.0324, 0.031),
    ("ring-4", "data_parallel", 4, 0, 0.0487, -0.062),
    ("server-2", "parameter_server", 2, 1, 0.1412, 0.088),
    ("server-4", "parameter_server", 4, 2, 0.2931, -0.144),
    ("pipeline-2", "pipeline", 2, 0, 0.1213, 0.044),
    ("pipeline-4", "pipeline", 4, 0, 0.1571, 0.118),
    ("hybrid-2", "hybrid", 2, 0, 0.1105, -0.037),
    ("hybrid-4", "hybrid", 4, 0, 0.1332, 0.072),
)
SAMPLES_PER_WORKER = 16
BASELINE_STEP_S = {"data_parallel": 0.028, "parameter_server": 0.071, "pipeline": 0.104, "hybrid": 0.104}
Row = tuple[int, Phase, int, int, float, float, float, Stream]


def _data_parallel(ranks: int, servers: int, draw: np.random.Generator) -> list[Row]:
    """Shares of a step: forward, backward overlapped with an allreduce, the exposed rest, optimizer."""
    rows: list[Row] = []
    for rank in range(ranks):
        late = float(draw.uniform(0, 0.03))
        rows.append((rank, Phase.FORWARD, -1, -1, 0.0, 0.0, 0.22 + late, Stream.MAIN))
        rows.append((rank, Phase.BACKWARD, -1, -1, 0.22 + late, 0.22 + late, 0.62 + late, Stream.MAIN))
        if servers:
            rows.append((rank, Phase.SEND, -1, -1, 0.62 + late, 0.62 + late, 0.75 + late, Stream.MAIN))
            rows.append((rank, Phase.WAIT, -1, -1, 0.75 + late, 0.86, 0.86, Stream.MAIN))
            rows.append((rank, Phase.RECEIVE, -1, -1, 0.86, 0.86, 1.0, Stream.MAIN))
        else:
            rows.append((rank, Phase.SYNCHRONISE, -1, -1, 0.45 + late, 0.48, 0.6, Stream.COMMUNICATION))
            rows.append((rank, Phase.SYNCHRONISE, -1, -1, 0.62 + late, 0.66, 0.88, Stream.MAIN))
            rows.append((rank, Phase.OPTIMIZER, -1, -1, 0.88, 0.88, 0.98, Stream.MAIN))
    for server in range(ranks, ranks + servers):
        rows.append((server, Phase.WAIT, -1, -1, 0.0, 0.77, 0.77, Stream.MAIN))
        rows.append((server, Phase.OPTIMIZER, -1, -1, 0.77, 0.77, 0.86, Stream.MAIN))
        rows.append((server, Phase.SEND, -1, -1, 0.86, 0.86, 1.0, Stream.MAIN))
    return rows


def _pipelined(ranks: int, stages: int, draw: np.random.Generator) -> list[Row]:
    """Shares of a step: four microbatches forward, then backward, each stage one slot behind the one before."""
    rows: list[Row] = []
    slot = 0.92 / (3 * (4 + stages - 1))
    for rank in range(ranks):
        stage = rank % stages
        free = 0.0
        for microbatch in range(4):
            start = (microbatch + stage) * slot
            if stage:
                rows.append((rank, Phase.RECEIVE, stage, microbatch, free, start, start + 0.15 * slot, Stream.MAIN))
                start += 0.15 * slot
            free = (microbatch + stage + 1) * slot - float(draw.uniform(0, 0.02)) * slot
            rows.append((rank, Phase.FORWARD, stage, microbatch, start, start, free, Stream.MAIN))
        turn = (4 + stages - 1) * slot
        for microbatch in range(4):
            start = turn + (microbatch + stages - 1 - stage) * 2 * slot
            if stage < stages - 1:
                rows.append((rank, Phase.RECEIVE, stage, microbatch, free, start, start + 0.2 * slot, Stream.MAIN))
                start += 0.2 * slot
            free = turn + (microbatch + stages - stage) * 2 * slot
            rows.append((rank, Phase.BACKWARD, stage, microbatch, start, start, free, Stream.MAIN))
        if stages < ranks:
            rows.append((rank, Phase.SYNCHRONISE, stage, -1, free, 0.93, 0.965, Stream.MAIN))
            free = 0.965
        rows.append((rank, Phase.OPTIMIZER, stage, -1, free, max(free, 0.93), max(free, 0.93) + 0.03, Stream.MAIN))
    return rows


def make_run(origin: Origin, case: tuple[str, str, int, int, float, float]) -> Run:
    """A run of `case`: step k lasts the step time, give or take what measuring adds."""
    scenario, family, compute_ranks, servers, measured_s, error = case
    ranks, step_time_s = compute_ranks + servers, measured_s * (1 + error) if origin == "predicted" else measured_s
    draw = np.random.default_rng(len(scenario) + compute_ranks)
    pipelined = family in ("pipeline", "hybrid")
    stages = compute_ranks if family == "pipeline" else max(1, compute_ranks // 2)
    shape = _pipelined(ranks, stages, draw) if pipelined else _data_parallel(compute_ranks, servers, draw)
    columns: dict[str, list[float]] = {name: [] for name in _COLUMNS}
    for step in range(STEPS + 1):
        for rank, phase, stage, microbatch, *times, stream in shape:
            arrival, start, end = ((step + share) * step_time_s for share in times)
            arrival = start if phase in COMPUTE_PHASES else arrival
            values = (rank, step, stream, phase, stage, microbatch, arrival, start, end, 1e6)
            for name, value in zip(columns, values, strict=True):
                columns[name].append(float(value))
    ends_s: NDArray[np.float64] = np.arange(1, STEPS + 2, dtype=np.float64) * step_time_s
    if origin == "measured":
        # one slow step in the middle; the slope of the others stays
        ends_s[3] += 0.04 * step_time_s
    return Run(
        **vars(from_spans(Spans.of(columns), ends_s, servers=np.arange(ranks) >= compute_ranks)),
        origin=origin,
        scenario=scenario,
        strategy=f"{family}, {compute_ranks} workers" + (f", {servers} servers" if servers else ""),
        samples=SAMPLES_PER_WORKER * compute_ranks,
        scaling={"weak": Scaling(BASELINE_STEP_S.get(family, 0.1) / step_time_s, None, "1 worker with as many samples")},
        provenance={"steps": str(STEPS)},
        rank_names=tuple(f"server {r - compute_ranks}" if r >= compute_ranks else f"worker {r}" for r in range(ranks)),
    )


def write_results(folder: Path, cases: Sequence[tuple[str, str, int, int, float, float]] = CASES, **head: Any) -> Path:
    """A results folder of `cases`, each predicted and measured; `head` replaces entries of reconcile.json."""
    entries = []
    for case in cases:
        entry: dict[str, Any] = {"scenario": case[0], "family": case[1], "ranks": case[2] + case[3], "compute_ranks": case[2]}
        for origin in ("predicted", "measured"):
            run = make_run(origin, case)
            save(run, folder / "runs" / case[0] / origin)
            entry[origin] = run.to_dict()
        entries.append(entry | {"strategy": run.strategy, "error": case[5], "failure": None, "folder": f"runs/{case[0]}"})
    plain = {
        "version": 1,
        "created": "2026-01-31T12:00:00+00:00",
        "host": "workstation",
        "environment": {"python": "3.11.9", "torch": "2.13.0", "scaleproof": "0.1.0", "cpu": "2 cores"},
        "max_error": 0.25,
        "cluster": "this-machine",
        "cases": entries,
    }
    (folder / "reconcile.json").write_text(json.dumps(plain | head), encoding="utf-8")
    return folder


def failed_case(failure: str = "rank 3 (stage 3) was killed by signal 9 in backward of step 4") -> dict[str, Any]:
    """A case that was predicted and could not be measured."""
    predicted = make_run("predicted", ("ring-8", "data_parallel", 8, 0, 0.21, 0.0)).to_dict()
    entry = {"scenario": "ring-8", "family": "data_parallel", "strategy": "data_parallel, 8 workers", "ranks": 8}
    return entry | {
        "compute_ranks": 8,
        "predicted": predicted,
        "measured": None,
        "error": None,
        "failure": failure,
        "folder": "",
    }


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Applies `change` to the folder's reconcile.json."""
    path = folder / "reconcile.json"
    plain = json.loads(path.read_text(encoding="utf-8"))
    change(plain)
    path.write_text(json.dumps(plain), encoding="utf-8")
