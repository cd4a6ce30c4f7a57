"""Assembles the spans that each rank has recorded into one Run.

The begin of a transfer follows only from several ranks' spans: a message moves once its sender has sent and its receiver is
ready, a collective once its last member has arrived, a parameter server's reply once the server sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import SPAN_COLUMNS, Phase, Spans, Stream
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.mesh import Axis
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.run.breakdown import from_spans
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record import emulation_lateness
from scaleproof.validator.record.async_run import asynchronous_run, by_update, is_asynchronous
from scaleproof.validator.record.clock_correction import Correction
from scaleproof.validator.record.cpu_usage import foreign_loads
from scaleproof.validator.record.provenance import combined, disturbance, load_warning, staged_warning, warned
from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN
from scaleproof.validator.record.server_spans import cut_pulls, extend_messages, stretch_pushes
from scaleproof.validator.record.step_time import including, slope_interval_s
from scaleproof.validator.record.steps import measured_steps

Rows = NDArray[Any]  # structured, of dtype RAW_SPAN with a column `rank`
# Largest error of clocks, as a share of a step, with which spans of several machines can be compared.
_TOLERATED_SHARE: Final = 0.1
_ROW: Final = np.dtype([("rank", np.int32), *RAW_SPAN.descr])


def rank_names(strategy: Strategy) -> tuple[str, ...]:
    """Name of each rank in the plan's numbering: 'worker 1 stage 0 tensor 1', 'server 1'."""
    plan = strategy.plan
    sizes: dict[Axis, int] = {"workers": strategy.workers, "stages": strategy.stages}
    sizes |= {"context": plan.context, "tensor": plan.tensor}
    named = [axis for axis, size in sizes.items() if size > 1] or ["workers"]
    outermost_first = plan.order[::-1]
    names = []
    if strategy.training_ranks != strategy.plan.ranks:
        # what a captured script divides among ranks is in its groups
        return tuple(f"rank {rank}" for rank in range(strategy.ranks))
    for place in product(*(range(sizes[axis]) for axis in outermost_first)):
        number = dict(zip(outermost_first, place, strict=True))
        names.append(" ".join(f"{axis.removesuffix('s')} {number[axis]}" for axis in sizes if axis in named))
    return (*names, *(f"server {server}" for server in range(strategy.servers)))


def finished_steps(recorded: Sequence[bytes]) -> int:
    """Number of the last step that all ranks have finished; 0 or less if that is a warm-up step or no step is finished."""
    return min((int(rows["step"][-1]) if len(rows) else 0) for rows in map(_complete, recorded))


def gathered(scenario: Scenario, recorded: Sequence[bytes], outcomes: Sequence[Mapping[str, Any]]) -> Run:
    """The Run of each rank's spans and `validator.strategy.train.RankOutcome`, in rank order."""
    training = outcomes[: scenario.strategy.training_ranks]
    corrections = [[Correction(**fields) for fields in outcome["corrections"]] for outcome in outcomes]
    aligned = [_corrected(own, by) for own, by in zip(recorded, corrections, strict=True)]
    steps = measured_steps(scenario)
    run = assemble(scenario, aligned, steps)
    losses = {step: sum(outcome["losses"].get(str(step), 0.0) for outcome in outcomes) for step in range(1, steps + 1)}
    memory_bytes = max((outcome["memory_bytes"] for outcome in training), key=_allocated)
    provenance = {**run.provenance, **combined([outcome["provenance"] for outcome in outcomes]), "compute": scenario.compute}
    load, busy = _foreign_load(outcomes)
    clocks, unaligned = _clocks(run, corrections)
    late, lateness_warning = emulation_lateness.summary([outcome["notes"] for outcome in training])
    return replace(
        run,
        losses=tuple(losses.values()) if any(outcome["losses"] for outcome in outcomes) else (),
        update_losses=by_update(scenario, outcomes),
        memory_bytes_per_rank=_allocated(memory_bytes) or None,
        memory_bytes=memory_bytes or None,
        provenance=provenance | late | load | clocks | warned([staged_warning(provenance), busy, lateness_warning, unaligned]),
    )


def _corrected(recorded: bytes, corrections: Sequence[Correction]) -> bytes:
    """The recorded rows with corrected times."""
    if not corrections:
        return recorded
    rows = np.frombuffer(recorded, dtype=RAW_SPAN).copy()
    for correction in corrections:
        for name in ("arrival_s", "start_s", "end_s"):
            rows[name] = correction.of(rows[name])
    return rows.tobytes()


def _allocated(memory_bytes: Mapping[str, float]) -> float:
    return memory_bytes.get("allocated", 0.0)


def _foreign_load(outcomes: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], str]:
    """Provenance of the load by other work on the busiest machine, and a warning where it was too much."""
    loads = foreign_loads([outcome["machine"] for outcome in outcomes], [outcome["usage"] for outcome in outcomes])
    if not loads:
        return {}, ""
    most = max(loads.values())
    return disturbance(most), load_warning(most)


def _clocks(run: Run, corrections: Sequence[Sequence[Correction]]) -> tuple[dict[str, str], str]:
    """Provenance of the alignment of clocks, and a warning where it is too coarse to separate waiting from transfers."""
    if not any(corrections):
        return {}, ""
    off_s = max(sum(one.uncertainty_s for one in own) for own in corrections)
    drift = max(abs(one.drift) for own in corrections for one in own)
    share = off_s / run.step_time_s if run.step_time_s else 0.0
    warning = (
        f"clocks agree only to {format_percent(share, 0)} of a step, so that waiting and transfers between machines cannot be "
        "separated; give larger batches, or a quieter network"
    )
    entry = {"clocks": f"aligned to ±{off_s * 1e6:.0f} us, drift up to {drift * 1e6:.1f} ppm"}
    return entry, warning if share > _TOLERATED_SHARE else ""


def assemble(scenario: Scenario, recorded: Sequence[bytes], steps: int) -> Run:
    """The Run of steps 1 … `steps` from each rank's spans, in rank order. Seconds count from the end of the warm-up."""
    strategy = scenario.strategy
    rows = np.concatenate([_with_rank(rank, _complete(own)) for rank, own in enumerate(recorded)])
    is_end = rows["phase"] == END_OF_STEP
    spans, ends = rows[~is_end], rows[is_end & (rows["step"] <= steps)]
    servers = np.arange(strategy.ranks) >= strategy.training_ranks
    _stretch_sends(spans)
    moving = _moving_messages(spans)
    _start_messages(spans)
    _start_collectives(spans)
    stretch_pushes(spans, servers)
    spans = cut_pulls(spans, servers)
    extend_messages(spans, servers)
    spans = np.concatenate([spans, moving])
    spans = spans[np.lexsort((spans["arrival_s"], spans["rank"]))]
    fields: dict[str, Any] = {
        "origin": "measured",
        "scenario": scenario.name,
        "strategy": strategy.kind,
        "rank_names": rank_names(strategy),
        "compute": scenario.compute,
    }
    if is_asynchronous(scenario):
        run = asynchronous_run(spans, ends[~servers[ends["rank"]]], servers, scenario, **fields)
    else:
        run = _synchronous_run(spans[(spans["step"] >= 1) & (spans["step"] <= steps)], ends, servers, scenario, **fields)
    return accounted(run, scenario)


def _synchronous_run(spans: Rows, ends: Rows, servers: NDArray[np.bool_], scenario: Scenario, /, **fields: Any) -> Run:
    """The Run of ranks that all take the same steps."""
    steps = range(int(ends["step"].max()) + 1)
    step_ends_s = np.array([ends["end_s"][ends["step"] == step].max() for step in steps])
    zero_s = step_ends_s[0]
    # time from the end of the warm-up to the end of the last step on each rank
    began_s, ended_s = (ends["end_s"][ends["step"] == step] for step in (0, steps[-1]))
    for name in ("arrival_s", "start_s", "end_s"):
        spans[name] -= zero_s
    named = {name: spans[name] for name in SPAN_COLUMNS if name in (spans.dtype.names or ())}
    # a span of the communication stream is one message or collective
    named["calls"] = (spans["stream"] == Stream.COMMUNICATION) & (spans["communication"] >= 0)
    columns = Spans.of(named | {"message_bytes": np.where(named["calls"], spans["size_bytes"], 0.0)})
    # of steps of which some are long for a reason; background traffic is the same in all
    unevenness = scenario.unevenness
    mean = unevenness.tail is not None or bool(unevenness.noise or unevenness.throttled)
    times = from_spans(columns, step_ends_s - zero_s, servers=servers, elapsed_s=ended_s - began_s, mean=mean)
    interval_s = including(times.step_time_s, slope_interval_s(step_ends_s))
    times = replace(times, step_time_interval_s=interval_s).divided(scenario.strategy.program_steps)
    return Run(**vars(times), samples=scenario.total_samples, **fields)


def _complete(recorded: bytes) -> Rows:
    """Rows up to the end of the last complete step: a rank may have died while it was writing."""
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


def _stretch_sends(spans: Rows) -> None:
    """Extends sends until the peer has received them, where the rank then waits for the peer's reply.

    A send returns once the kernel has taken the bytes, before they have arrived.
    """
    received = _messages(spans, Phase.RECEIVE)
    replies = {(step, rank, peer): row for (step, rank, peer, _), row in _messages(spans, Phase.SYNCHRONISE).items()}
    for (step, rank, peer, match), row in _messages(spans, Phase.SEND).items():
        reply, receive = replies.get((step, rank, peer)), received.get((step, peer, rank, match))
        if reply is not None and receive is not None:
            arrived_s = max(float(spans["end_s"][row]), float(spans["end_s"][receive]))
            spans["end_s"][row] = spans["arrival_s"][reply] = min(arrived_s, float(spans["end_s"][reply]))


def _start_messages(spans: Rows) -> None:
    """Sets the start of both spans of a message: once it was sent and its receiver is ready.

    The receiver is ready at the start of its span, which is the posting of the receive if that was recorded. Receives may have
    the phase SYNCHRONISE.
    """
    sent, received = _messages(spans, Phase.SEND), _messages(spans, Phase.RECEIVE, Phase.SYNCHRONISE)
    for (step, source, target, match), row in received.items():
        other = sent.get((step, target, source, match))
        if other is not None:
            sent_s, ready_s = float(spans["start_s"][other]), float(spans["start_s"][row])
            for side in (row, other):
                _clamp_start(spans, side, max(sent_s, ready_s))
    spans["start_s"] = np.maximum(spans["start_s"], spans["arrival_s"])


def _moving_messages(spans: Rows) -> Rows:
    """Spans of messages in transit, on the communication stream of both sides, as in predicted runs.

    A message moves from when it was sent until its receiver has it. If the receiver was busy when it arrived, the time of the
    arrival is unknown: the message is assumed to be as fast as the fastest of its size between those ranks.
    """
    sent, received = _messages(spans, Phase.SEND), _messages(spans, Phase.RECEIVE, Phase.SYNCHRONISE)
    pairs = [
        (sent[step, peer, rank, match], row)
        for (step, rank, peer, match), row in received.items()
        if (step, peer, rank, match) in sent
    ]
    send, receive = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    on_main = (spans["stream"][send] == Stream.MAIN) & (spans["stream"][receive] == Stream.MAIN)
    send, receive = send[on_main], receive[on_main]
    sent_s, took_s = spans["start_s"][send], spans["end_s"][receive] - spans["start_s"][send]
    keys = np.stack([spans["rank"][send], spans["peer"][send], spans["size_bytes"][send]])
    _, link = np.unique(keys, axis=1, return_inverse=True)
    fastest_s = np.full(link.max(initial=-1) + 1, np.inf)
    np.minimum.at(fastest_s, link, took_s)
    arrived_s = np.maximum(
        sent_s, sent_s + np.where(spans["arrival_s"][receive] > sent_s + fastest_s[link], fastest_s[link], took_s)
    )
    moving: Rows = spans[np.concatenate([send, receive])]
    moving["stream"] = Stream.COMMUNICATION
    moving["phase"] = np.repeat([Phase.SEND, Phase.RECEIVE], len(send))
    moving["arrival_s"] = moving["start_s"] = np.tile(sent_s, 2)
    moving["end_s"] = np.tile(arrived_s, 2)
    return moving


def _messages(spans: Rows, *phases: Phase) -> dict[tuple[int, int, int, int], int]:
    """Row numbers of messages' spans, by (step, own rank, peer, match)."""
    rows = np.flatnonzero(np.isin(spans["phase"], phases) & (spans["peer"] >= 0))
    columns = [spans[name][rows].tolist() for name in ("step", "rank", "peer", "match")]
    return dict(zip(zip(*columns, strict=True), rows.tolist(), strict=True))


def _start_collectives(spans: Rows) -> None:
    """Sets the start of collectives to the last member's arrival, and that of exposed waits to the first open bucket's."""
    rows = np.flatnonzero((spans["stream"] == Stream.COMMUNICATION) & (spans["phase"] == Phase.SYNCHRONISE))
    keys = np.stack([spans[name][rows] for name in ("step", "group", "match")])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    last_s = np.full(group.max(initial=-1) + 1, -np.inf)
    np.maximum.at(last_s, group, spans["arrival_s"][rows])
    spans["start_s"][rows] = np.minimum(last_s[group], spans["end_s"][rows])
    buckets: dict[tuple[int, int], list[int]] = {}
    for row in rows[np.argsort(spans["end_s"][rows])].tolist():
        buckets.setdefault((int(spans["rank"][row]), int(spans["step"][row])), []).append(row)
    # for each bucket the earliest start among those that end as late or later
    first_s = {key: np.minimum.accumulate(spans["start_s"][own][::-1])[::-1] for key, own in buckets.items()}
    ends_s = {key: spans["end_s"][own] for key, own in buckets.items()}
    exposed = (spans["stream"] == Stream.MAIN) & (spans["phase"] == Phase.SYNCHRONISE)
    for row in np.flatnonzero(exposed).tolist():
        key = int(spans["rank"][row]), int(spans["step"][row])
        if key in buckets:
            place = int(np.searchsorted(ends_s[key], spans["arrival_s"][row], side="right"))
            if place < len(first_s[key]):
                _clamp_start(spans, row, float(first_s[key][place]))
