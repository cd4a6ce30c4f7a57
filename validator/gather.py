"""Gathering: what the ranks noted, each for itself, put together into one Run.

Only together do they tell when bytes began to move: a message once its sender has sent and its receiver is there, a collective
once its last member has come, a parameter server's answer once the server sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.accounting import accounted
from simulator.run import Phase, Run, Spans, Stream, from_spans
from simulator.scenario import Scenario
from simulator.strategy import Strategy
from validator.recorder import END_OF_STEP, RAW_SPAN

Rows = NDArray[Any]  # structured, of dtype RAW_SPAN with a column `rank`
_ROW = np.dtype([("rank", np.int32), *RAW_SPAN.descr])


def read_recorded(path: Path) -> bytes:
    """What a rank left so far; nothing if it had not begun."""
    return path.read_bytes() if path.exists() else b""


def rank_names(strategy: Strategy) -> tuple[str, ...]:
    """What each rank is called: 'worker 1 stage 0', 'server 1'; the workers of a stage are neighbours."""
    names = []
    for stage in range(strategy.stages):
        for worker in range(strategy.workers):
            parts = [f"worker {worker}"] if strategy.workers > 1 or strategy.stages == 1 else []
            parts += [f"stage {stage}"] if strategy.stages > 1 else []
            names.append(" ".join(parts))
    return (*names, *(f"server {server}" for server in range(strategy.servers)))


def finished_steps(recorded: Sequence[bytes]) -> int:
    """The last step that all ranks have finished; 0 or less if that is a warm-up step or none."""
    return min((int(rows["step"][-1]) if len(rows) else 0) for rows in map(_complete, recorded))


def with_outcomes(run: Run, scenario: Scenario, outcomes: Sequence[Mapping[str, Any]]) -> Run:
    """The run with what ranks told beside their spans, each a `validator.train.Outcome`, in rank order."""
    summed = {step: sum(told["losses"].get(str(step), 0.0) for told in outcomes) for step in range(1, scenario.steps + 1)}
    losses = tuple(summed.values()) if any(told["losses"] for told in outcomes) else ()
    told = {"compute": scenario.compute} | _overrun(outcomes)
    provenance = {**run.provenance, **outcomes[0]["provenance"], **told}
    return replace(run, compute=scenario.compute, losses=losses, provenance=provenance)


def _overrun(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What of paced ranks' waiting was too long already, on the rank where that was most."""
    shares = [
        told["notes"]["overrun_s"] / max(told["notes"]["paced_s"], 1e-9) for told in outcomes if "paced_s" in told["notes"]
    ]
    return {"compute_overrun": f"{max(shares):.1%} of the time to be waited"} if shares else {}


def assemble(scenario: Scenario, recorded: Sequence[bytes], steps: int) -> Run:
    """The Run of steps 1 … `steps` from what each rank recorded, in rank order. Seconds count from the end of the warm-up."""
    strategy = scenario.strategy
    rows = np.concatenate([_with_rank(rank, _complete(own)) for rank, own in enumerate(recorded)])
    rows = rows[(rows["step"] >= 0) & (rows["step"] <= steps)]
    ends = rows["phase"] == END_OF_STEP
    step_ends_s = np.array([rows["end_s"][ends & (rows["step"] == step)].max() for step in range(steps + 1)])
    spans = rows[~ends & (rows["step"] >= 1)]
    servers = np.arange(strategy.ranks) >= strategy.training_ranks
    _start_messages(spans)
    _start_collectives(spans)
    spans = _cut_pulls(spans, servers)
    zero_s = step_ends_s[0]
    for name in ("arrival_s", "start_s", "end_s"):
        spans[name] -= zero_s
    spans = spans[np.lexsort((spans["arrival_s"], spans["rank"]))]
    run = from_spans(
        Spans.of({name: spans[name] for name in Spans.__dataclass_fields__}),
        step_ends_s - zero_s,
        servers=servers,
        origin="measured",
        scenario=scenario.name,
        strategy=strategy.kind,
        samples=scenario.total_samples,
        rank_names=rank_names(strategy),
    )
    return accounted(run, scenario)


def _complete(recorded: bytes) -> Rows:
    """Rows up to the last step that is complete: a rank may have died while it wrote."""
    rows = np.frombuffer(recorded[: len(recorded) // RAW_SPAN.itemsize * RAW_SPAN.itemsize], dtype=RAW_SPAN)
    ends = np.flatnonzero(rows["phase"] == END_OF_STEP)
    return rows[: ends[-1] + 1 if len(ends) else 0]


def _with_rank(rank: int, rows: Rows) -> Rows:
    result = np.empty(len(rows), dtype=_ROW)
    for name in RAW_SPAN.names or ():
        result[name] = rows[name]
    result["rank"] = rank
    return result


def _clamp_start(spans: Rows, row: int, begin_s: float) -> None:
    spans["start_s"][row] = min(max(begin_s, spans["arrival_s"][row]), spans["end_s"][row])


def _start_messages(spans: Rows) -> None:
    """A message moves once it was sent and its receiver is there; each side's span starts then."""
    sent, received = (_messages(spans, phase) for phase in (Phase.SEND, Phase.RECEIVE))
    for (step, source, target, match), row in received.items():
        other = sent.get((step, target, source, match))
        if other is not None:
            sent_s, there_s = float(spans["start_s"][other]), float(spans["arrival_s"][row])
            for side in (row, other):
                _clamp_start(spans, side, max(sent_s, there_s))


def _messages(spans: Rows, phase: Phase) -> dict[tuple[int, int, int, int], int]:
    """(step, own rank, peer, match) → row."""
    rows = np.flatnonzero((spans["phase"] == phase) & (spans["peer"] >= 0))
    columns = [spans[name][rows].tolist() for name in ("step", "rank", "peer", "match")]
    return dict(zip(zip(*columns, strict=True), rows.tolist(), strict=True))


def _start_collectives(spans: Rows) -> None:
    """A collective moves once its last member has come. What a rank waits for exposed begins with its first open bucket."""
    rows = np.flatnonzero((spans["stream"] == Stream.COMMUNICATION) & (spans["phase"] == Phase.SYNCHRONISE))
    keys = np.stack([spans[name][rows] for name in ("step", "group", "match")])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    last_s = np.full(group.max(initial=-1) + 1, -np.inf)
    np.maximum.at(last_s, group, spans["arrival_s"][rows])
    spans["start_s"][rows] = np.minimum(last_s[group], spans["end_s"][rows])
    buckets: dict[tuple[int, int], list[int]] = {}
    for row in rows.tolist():
        buckets.setdefault((int(spans["rank"][row]), int(spans["step"][row])), []).append(row)
    exposed = (spans["stream"] == Stream.MAIN) & (spans["phase"] == Phase.SYNCHRONISE)
    for row in np.flatnonzero(exposed).tolist():
        own = buckets.get((int(spans["rank"][row]), int(spans["step"][row])), [])
        open_s = [float(spans["start_s"][b]) for b in own if spans["end_s"][b] > spans["arrival_s"][row]]
        if open_s:
            _clamp_start(spans, row, min(open_s))


def _cut_pulls(spans: Rows, servers: NDArray[np.bool_]) -> Rows:
    """Cuts what a worker waits for its servers into waiting, until the last of them sends, and receiving."""
    is_server = servers[spans["rank"]]
    answers = is_server & (spans["phase"] == Phase.SEND)
    answered_s = np.full(int(spans["step"].max(initial=0)) + 1, -np.inf)
    np.maximum.at(answered_s, spans["step"][answers], spans["start_s"][answers])
    waits = ~is_server & (spans["phase"] == Phase.WAIT)
    pulls = spans[waits].copy()
    cut_s = np.clip(answered_s[pulls["step"]], pulls["arrival_s"], pulls["end_s"])
    pulls["phase"] = Phase.RECEIVE
    pulls["arrival_s"] = pulls["start_s"] = cut_s
    spans["end_s"][waits] = cut_s
    spans["size_bytes"][waits] = 0.0
    return np.concatenate([spans, pulls])
