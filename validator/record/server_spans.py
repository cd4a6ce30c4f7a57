"""Spans of messages between workers and servers: what neither side can tell alone of when they moved."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.run.run import Phase, Stream

Rows = NDArray[Any]  # structured, of dtype RAW_SPAN with a column `rank`


def stretch_pushes(spans: Rows, servers: NDArray[np.bool_]) -> None:
    """What the kernel has taken is not there yet: a worker that goes on to wait for servers sends until they have its push."""
    came_s = _came_s(spans, servers)
    main = ~servers[spans["rank"]] & (spans["match"] >= 0) & (spans["stream"] == Stream.MAIN)
    waits = {_push(spans[row]): row for row in np.flatnonzero(main & (spans["phase"] == Phase.WAIT)).tolist()}
    for row in np.flatnonzero(main & (spans["phase"] == Phase.SEND)).tolist():
        key = _push(spans[row])
        if key in came_s and key in waits:
            wait = waits[key]
            there_s = min(max(came_s[key], float(spans["end_s"][row])), float(spans["end_s"][wait]))
            spans["end_s"][row] = spans["arrival_s"][wait] = spans["start_s"][wait] = there_s


def _came_s(spans: Rows, servers: NDArray[np.bool_]) -> dict[tuple[int, ...], float]:
    """(worker, bucket, number) → when the last of its servers had a push."""
    came_s: dict[tuple[int, ...], float] = {}
    named = servers[spans["rank"]] & (spans["match"] >= 0)
    for row in spans[named & (spans["phase"] == Phase.RECEIVE)]:
        key = int(row["peer"]), int(row["group"]), int(row["match"])
        came_s[key] = max(float(row["end_s"]), came_s.get(key, -np.inf))
    return came_s


def _push(row: Any) -> tuple[int, ...]:
    return int(row["rank"]), int(row["group"]), int(row["match"])


def cut_pulls(spans: Rows, servers: NDArray[np.bool_]) -> Rows:
    """Cuts what a worker waits for its servers into waiting, until the last of them sends, and receiving."""
    is_server = servers[spans["rank"]]
    answered_s: dict[tuple[int, ...], float] = {}
    for row in spans[is_server & (spans["phase"] == Phase.SEND)]:
        key = _answer(int(row["peer"]), row)
        answered_s[key] = max(float(row["start_s"]), answered_s.get(key, -np.inf))
    waits = ~is_server & (spans["phase"] == Phase.WAIT)
    pulls = spans[waits].copy()
    # an answer names the worker that it is for, unless it is for all
    sent_s = [max(answered_s.get(_answer(peer, row), -np.inf) for peer in (int(row["rank"]), -1)) for row in pulls]
    cut_s = np.clip(np.array(sent_s), pulls["arrival_s"], pulls["end_s"])
    pulls["phase"] = Phase.RECEIVE
    pulls["arrival_s"] = pulls["start_s"] = cut_s
    spans["end_s"][waits] = cut_s
    spans["size_bytes"][waits] = 0.0
    return np.concatenate([spans, pulls])


def _answer(peer: int, row: Any) -> tuple[int, ...]:
    """What an answer and the wait for it have in common: a number, or for want of one the step."""
    match = int(row["match"])
    return peer, int(row["group"]), match, int(row["step"]) if match < 0 else 0


def extend_messages(spans: Rows, servers: NDArray[np.bool_]) -> None:
    """Messages that move beside other things are noted where they begin, or where they end. A push moves from when its worker
    sends it until the server has it, a pull from when the server sends it until its worker has it."""
    is_server, named = servers[spans["rank"]], (spans["match"] >= 0) & servers.any()
    beside, phase = spans["stream"] == Stream.COMMUNICATION, spans["phase"]
    keys = list(zip(*(spans[name].tolist() for name in ("rank", "peer", "group", "match")), strict=True))
    own = [(rank, group, match) for rank, _, group, match in keys]
    came_s = _came_s(spans, servers)
    sends, pulls = (np.flatnonzero(~is_server & named & (phase == one)).tolist() for one in (Phase.SEND, Phase.RECEIVE))
    sent_s = {own[row]: float(spans["start_s"][row]) for row in sends}
    pulled_s = {own[row]: float(spans["end_s"][row]) for row in pulls}
    for row in sends:
        if beside[row] and own[row] in came_s:
            spans["end_s"][row] = max(came_s[own[row]], sent_s[own[row]])
    for row in np.flatnonzero(is_server & named & beside & (spans["peer"] >= 0)).tolist():
        worker = keys[row][1:]
        if phase[row] == Phase.RECEIVE and worker in sent_s:
            spans["arrival_s"][row] = spans["start_s"][row] = min(sent_s[worker], float(spans["end_s"][row]))
        elif phase[row] == Phase.SEND and worker in pulled_s:
            spans["end_s"][row] = max(pulled_s[worker], float(spans["start_s"][row]))
