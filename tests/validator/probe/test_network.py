"""Messages are timed between the ranks that send them, by size, and each probe records the quantity of its name."""

from __future__ import annotations

import time

import pytest

from scaleproof.simulator.common.errors import RankError
from scaleproof.validator.launch.job import Host
from scaleproof.validator.launch.launch import LocalRanks, run_on_ranks
from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.probe import network
from scaleproof.validator.probe.pairs import RankPair
from scaleproof.validator.probe.points import Point
from tests.validator.netlabs import lab_cluster, needs_netlab
from tests.validator.probe import onranks
from tests.validator.probe.onranks import least_s, probed

pytestmark = pytest.mark.full

PAIRS = [RankPair(0, 1, "same node"), RankPair(1, 2, "across")]


def test_every_pair_sends_every_size() -> None:
    points = sorted(probed(network.messages, 3, PAIRS, (2**22, 4), 3.0), key=lambda point: (point.ranks, point.size))
    assert [(p.where, p.group, p.ranks, p.size) for p in points] == [
        ("rank 0 to rank 1", "same node", (0, 1), 4),
        ("rank 0 to rank 1", "same node", (0, 1), 2**22),
        ("rank 1 to rank 2", "across", (1, 2), 4),
        ("rank 1 to rank 2", "across", (1, 2), 2**22),
    ]
    assert {(p.probe, p.what, p.unit) for p in points} == {("message", "send", "bytes")}
    for pair in (points[:2], points[2:]):
        assert least_s(pair, "send", 2**22) > least_s(pair, "send", 4)


def test_a_probe_ends_at_about_its_time_limit() -> None:
    begin_s = time.monotonic()
    points = probed(network.messages, 2, PAIRS[:1], (2**26, 2**27, 2**28), 0.2)
    assert [p.size for p in points] == [2**26], "whatever takes longer is left out"
    assert points[0].stopped == "time"
    assert time.monotonic() - begin_s < 100


def test_streams_give_the_time_between_messages() -> None:
    points = probed(network.streams, 2, PAIRS[:1], (4, 2**20), 3.0)
    assert {(p.what, p.numbers["messages"]) for p in points} == {("stream", 16)}
    assert 0 < least_s(points, "stream", 4) < least_s(points, "stream", 2**20)


def test_messages_on_a_loaded_link_are_recorded_with_their_unloaded_time() -> None:
    [exchange] = probed(network.exchanges, 2, PAIRS[:1], (2**22,), 1.0)
    [behind] = probed(network.behind_streams, 2, PAIRS[:1], (2**22,), 1.0)
    assert (exchange.what, exchange.size) == ("exchange", 2**22)
    assert (behind.what, behind.size, behind.numbers["stream_bytes"]) == ("send behind a stream", 4, 2**22)
    assert behind.numbers["alone_s"] > 0


def test_incast_points_name_senders_and_receiver() -> None:
    points = probed(network.incast, 4, [[0, 1], [0, 1, 2, 3], [3, 2]], (2**20,), 1.0)
    assert [(p.where, p.numbers["senders"]) for p in points] == [
        ("rank 1 to rank 0", 1), ("ranks 1-3 to rank 0", 3), ("rank 2 to rank 3", 1),
    ]  # fmt: skip


def test_a_rank_that_fails_ends_the_probe() -> None:
    with pytest.raises(RankError, match=r"rank 2 failed in .*the last rank has enough"):
        probed(onranks.probe_as_one_fails, 3, PAIRS)


@needs_netlab
def test_lab_links_are_not_faster_than_requested() -> None:
    """80 Mbit/s each way: half a mebibyte takes 52 ms, less what the link's bucket lets through at once; both ways too."""
    with Netlab(lab_cluster(2, "80 Mbit/s")) as lab:
        hosts = [Host(lab.namespace(host), lab.interface) for host in range(2)]
        plain, _ = run_on_ranks(_messages_and_exchanges, LocalRanks(hosts))
    points = [Point.of(one) for one in plain]
    for what in ("send", "exchange"):
        assert least_s(points, what, 2**19) > (2**19 - 2**17) / 10e6


def _messages_and_exchanges() -> list[dict[str, object]]:
    pairs = [RankPair(0, 1, "same leaf")]
    return [*network.messages(pairs, (2**19,), 1.0), *network.exchanges(pairs, (2**19,), 1.0)]
