"""Spans of messages between workers and servers, completed with times that only the other side has recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import Phase, Stream

Rows = NDArray[Any]  # structured, of dtype RAW_SPAN with a column `rank`


def stretch_pushes(spans: Rows, servers: NDArray[np.bool_]) -> None:
    """Extends a worker's push until its last server has received it, where the worker then waits for the reply.

    A send returns once the kernel has taken the bytes, before they have arrived. servers: which ranks are servers.
    """
    received_s = _received_s(spans, servers)
    main = ~servers[spans["rank"]] & (spans["match"] >= 0) & (spans["stream"] == Stream.MAIN)
    waits = {_push(spans[row]): row for row in np.flatnonzero(main & (spans["phase"] == Phase.WAIT)).tolist()}
    for row in np.flatnonzero(main & (spans["phase"] == Phase.SEND)).tolist():
        key = _push(spans[row])
        if key in received_s and key in waits:
            wait = waits[key]
            arrived_s = min(max(received_s[key], float(spans["end_s"][row])), float(spans["end_s"][wait]))
            spans["end_s"][row] = spans["arrival_s"][wait] = spans["start_s"][wait] = arrived_s


def _received_s(spans: Rows, servers: NDArray[np.bool_]) -> dict[tuple[int, ...], float]:
    """Time at which the last server had received a push, by (worker, bucket, number)."""
    received_s: dict[tuple[int, ...], float] = {}
    named = servers[spans["rank"]] & (spans["match"] >= 0)
    for row in spans[named & (spans["phase"] == Phase.RECEIVE)]:
        key = int(row["peer"]), int(row["group"]), int(row["match"])
        received_s[key] = max(float(row["end_s"]), received_s.get(key, -np.inf))
    return received_s


def _push(row: Any) -> tuple[int, ...]:
    return int(row["rank"]), int(row["group"]), int(row["match"])


def cut_pulls(spans: Rows, servers: NDArray[np.bool_]) -> Rows:
    """Splits a worker's waits for servers into waiting, until the last of them sends, and receiving."""
    is_server = servers[spans["rank"]]
    replied_s: dict[tuple[int, ...], float] = {}
    for row in spans[is_server & (spans["phase"] == Phase.SEND)]:
        key = _reply(int(row["peer"]), row)
        replied_s[key] = max(float(row["start_s"]), replied_s.get(key, -np.inf))
    waits = ~is_server & (spans["phase"] == Phase.WAIT)
    pulls = spans[waits].copy()
    # the peer of a reply is its worker, or -1 if it goes to all
    sent_s = [max(replied_s.get(_reply(peer, row), -np.inf) for peer in (int(row["rank"]), -1)) for row in pulls]
    cut_s = np.clip(np.array(sent_s), pulls["arrival_s"], pulls["end_s"])
    pulls["phase"] = Phase.RECEIVE
    pulls["arrival_s"] = pulls["start_s"] = cut_s
    spans["end_s"][waits] = cut_s
    spans["size_bytes"][waits] = 0.0
    return np.concatenate([spans, pulls])


def _reply(peer: int, row: Any) -> tuple[int, ...]:
    """Key of a reply and of the wait for it: the number of the push, or the step if the reply has no number."""
    match = int(row["match"])
    return peer, int(row["group"]), match, int(row["step"]) if match < 0 else 0


def extend_messages(spans: Rows, servers: NDArray[np.bool_]) -> None:
    """Completes spans on the communication stream, which were recorded only where messages begin or end.

    A push moves from when its worker sends it until the server has it, a pull from when the server sends it until its worker
    has it.
    """
    is_server, named = servers[spans["rank"]], (spans["match"] >= 0) & servers.any()
    overlapped, phase = spans["stream"] == Stream.COMMUNICATION, spans["phase"]
    keys = list(zip(*(spans[name].tolist() for name in ("rank", "peer", "group", "match")), strict=True))
    own = [(rank, group, match) for rank, _, group, match in keys]
    received_s = _received_s(spans, servers)
    sends, pulls = (np.flatnonzero(~is_server & named & (phase == one)).tolist() for one in (Phase.SEND, Phase.RECEIVE))
    sent_s = {own[row]: float(spans["start_s"][row]) for row in sends}
    pulled_s = {own[row]: float(spans["end_s"][row]) for row in pulls}
    for row in sends:
        if overlapped[row] and own[row] in received_s:
            spans["end_s"][row] = max(received_s[own[row]], sent_s[own[row]])
    for row in np.flatnonzero(is_server & named & overlapped & (spans["peer"] >= 0)).tolist():
        worker = keys[row][1:]
        if phase[row] == Phase.RECEIVE and worker in sent_s:
            spans["arrival_s"][row] = spans["start_s"][row] = min(sent_s[worker], float(spans["end_s"][row]))
        elif phase[row] == Phase.SEND and worker in pulled_s:
            spans["end_s"][row] = max(pulled_s[worker], float(spans["start_s"][row]))
