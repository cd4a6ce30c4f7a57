"""Records of processes are read in order of time, also after a process was killed while writing."""

from __future__ import annotations

from pathlib import Path

from scaleproof.proof.elastic import records
from scaleproof.proof.elastic.records import EventLog


def test_notes_of_all_processes_are_read_in_order(tmp_path: Path) -> None:
    agent, trainer = EventLog(tmp_path, 0, "agent"), EventLog(tmp_path, 1, "trainer")
    trainer.note("begun")
    agent.note("met")
    trainer.note("step", step=3, rank=1)
    events = records.read(tmp_path)
    assert [(event.by, event.host, event.what) for event in events] == [
        ("trainer", 1, "begun"),
        ("agent", 0, "met"),
        ("trainer", 1, "step"),
    ]
    assert events[-1].step == 3
    assert records.of_trainer(tmp_path, 1) == [events[0], events[2]]
    assert records.of_trainer(tmp_path, 0) == []


def test_incomplete_lines_are_ignored(tmp_path: Path) -> None:
    EventLog(tmp_path, 0, "trainer").note("begun")
    path = tmp_path / "trainer-0.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:-cut])
        assert len(records.read(tmp_path)) == (2 if cut == 1 else 1)


def test_record_size_grows_with_progress(tmp_path: Path) -> None:
    assert records.size_bytes(tmp_path) == 0
    EventLog(tmp_path, 0, "trainer").note("begun")
    before_bytes = records.size_bytes(tmp_path)
    EventLog(tmp_path, 1, "agent").note("met")
    assert records.size_bytes(tmp_path) > before_bytes > 0
