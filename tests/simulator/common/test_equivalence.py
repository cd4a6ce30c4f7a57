"""Equivalence classes of transfers and links."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.common.equivalence import UsedLinks, classes, hashes, labels


def classes_of(routes: list[list[int]], amounts: list[float], capacities: list[float]) -> tuple[list[int], list[int]]:
    """Classes of transfers by their links and amounts, and of links by their capacities."""
    transfer = np.repeat(np.arange(len(routes)), np.array([len(route) for route in routes], dtype=np.int64))
    link = np.array([link for route in routes for link in route], dtype=np.int64)
    uses = UsedLinks(transfer, link, labels(np.array(amounts, dtype=np.float64)[transfer]))
    found = classes(uses, np.zeros(len(routes), dtype=np.uint64), hashes(np.array(capacities, dtype=np.float64)))
    return found[0].tolist(), found[1].tolist()


def test_a_ring_is_one_class() -> None:
    transfers, links = classes_of([[i, (i + 1) % 5] for i in range(5)], [1.0] * 5, [2.0] * 5)
    assert len(set(transfers)) == len(set(links)) == 1


def test_another_capacity_divides_all_that_are_connected_by_their_distance_from_it() -> None:
    transfers, links = classes_of([[i, (i + 1) % 5] for i in range(5)], [1.0] * 5, [9.0, 2.0, 2.0, 2.0, 2.0])
    assert [links.count(number) for number in links] == [1, 2, 2, 2, 2]
    assert [transfers.count(number) for number in transfers] == [2, 2, 1, 2, 2]


@pytest.mark.parametrize(("amount", "equal"), [(1.0, True), (1.0 + 1e-14, True), (1.0 + 1e-6, False)])
def test_amounts_that_differ_by_rounding_are_equal(amount: float, equal: bool) -> None:
    transfers, links = classes_of([[0], [1]], [1.0, amount], [2.0, 2.0])
    assert (transfers[0] == transfers[1]) is equal
    assert (links[0] == links[1]) is equal


def test_links_differ_by_the_number_of_transfers() -> None:
    transfers, links = classes_of([[0], [1], [1]], [1.0] * 3, [2.0] * 3)
    assert transfers[0] != transfers[1] == transfers[2]
    assert len(set(links)) == 3
