"""Stores never wait for ranks that nobody plays, and give the values that played ranks set."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from scaleproof.validator.capture.communication import mailbox as mailboxes  # noqa: E402
from scaleproof.validator.capture.communication.mailbox import Mailbox, NoValueError  # noqa: E402
from scaleproof.validator.capture.communication.store import SharedStore, store_type  # noqa: E402

RANKS = 4


def store_of(rank: int, folder: Path, notes: list[str]) -> SharedStore:
    return store_type(Mailbox(folder, rank), rank, RANKS, notes.append)("127.0.0.1", 29500)


def test_counters_count_all_ranks_and_waits_return(tmp_path: Path) -> None:
    store = store_of(2, tmp_path, [])
    assert store.add("ready", 1) == 3, "ranks add one after the other"
    assert store.add("ready", 0) == int(store.get("ready")) == RANKS
    store.wait(["what no rank sets"], timedelta(days=1))
    assert store.check(["what no rank sets"])
    # also through PyTorch's own objects around it, which call from C++
    around = torch.distributed.PrefixStore("around", store)
    around.set("own", "value")
    assert around.get("own") == b"value"
    assert around.delete_key("own")


def test_values_of_other_ranks_are_theirs_or_like_this_rank_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "PATIENCE_S", 0.01)
    notes: list[str] = []
    first, last = store_of(0, tmp_path, notes), store_of(RANKS - 1, tmp_path, notes)
    first.set("run", "name")
    assert last.get("run") == b"name"
    last.set("address-3", "here")
    assert last.get("address-1") == b"here"
    assert not notes
    assert last.get("nobody") == b""
    assert "'nobody'" in notes[0]


def test_a_rank_does_not_wait_for_one_that_has_ended(tmp_path: Path) -> None:
    sender, receiver = Mailbox(tmp_path, 0), Mailbox(tmp_path, 1)
    sender.put("channel", 1, 7)
    sender.end()
    assert receiver.get("channel", 0, 1) == 7
    with pytest.raises(NoValueError, match="rank 1 waits for a value of rank 0, which ended"):
        receiver.get("channel", 0, 1)
