"""Specs as keys of caches: equal fields, equal hashes, whatever was derived from them."""

from __future__ import annotations

import pickle

from tests.simulator.clusters import plain


def test_equal_specs_are_the_same_key_with_mappings_and_cached_properties() -> None:
    known, other = plain(4, uncertainty={"network.latency": {"low": "1 us", "high": "2 us"}}), plain(4)
    again = known.rebuilt()
    assert known.interconnect.cluster is known
    assert again == known
    assert {known: "found"}[again] == "found"
    assert other != known
    assert known.interconnect == other.interconnect


def test_a_changed_copy_has_a_hash_of_its_own() -> None:
    known = plain(4)
    hash(known)
    assert known.model_copy(update={"nodes": 5}) != known
    assert hash(known.model_copy(update={"nodes": 5})) == hash(plain(5))


def test_a_pickle_has_no_hash_since_hashes_of_text_differ_between_processes() -> None:
    known = plain(4)
    hash(known)
    assert "_hash" not in pickle.loads(pickle.dumps(known)).__dict__
