from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports import reading
from scaleproof.validator.calibration.imports.json_stream import read_list
from scaleproof.validator.calibration.imports.reading import ImportNotes, read_bytes


def test_archives_that_expand_beyond_memory_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_BYTES", 2**22)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(2**23)))
    with pytest.raises(InputError, match="more than 0 GiB; record fewer steps"):
        read_bytes(tmp_path / "bomb.gz")


def test_endless_files_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_BYTES", 2**22)
    with pytest.raises(InputError, match="/dev/zero: more than"):
        read_bytes(Path("/dev/zero"))


@pytest.mark.parametrize("cut", [0, 20, 1000])
def test_truncated_archives_are_read_up_to_the_cut(cut: int, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    packed = gzip.compress(content) + gzip.compress(b"more")
    (tmp_path / "t.gz").write_bytes(packed[: len(packed) - cut])
    assert (content + b"more").startswith(read_bytes(tmp_path / "t.gz"))


@pytest.mark.parametrize("content", [b"\x1f\x8b", b"\x1f\x8b" + bytes(50), gzip.compress(b"x" * 1000, mtime=0)[:-8] + bytes(8)])
def test_damaged_archives_are_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.gz").write_bytes(content)
    with pytest.raises(InputError, match="damaged, gzip cannot unpack it"):
        read_bytes(tmp_path / "t.gz")


def test_numbers_of_thousands_of_digits_give_a_readable_error(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(f'{{"items": [{"1" * 5000}]}}')
    with pytest.raises(InputError, match="a number of thousands of digits; expected a trace"):
        read_list(tmp_path / "t.json", "items", "a trace", ImportNotes(), print)


def test_lists_are_read_item_by_item_however_the_file_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"a": [number, "é\n"]} for number in range(50)]
    document = {"before": 12.5, "items": items, "after": {"items": [1]}}
    (tmp_path / "t.json").write_text(json.dumps(document, ensure_ascii=False, indent=1))
    for part in (1, 7, 1000):
        monkeypatch.setattr(reading, "_PART_BYTES", part)
        found: list[object] = []
        fields = read_list(tmp_path / "t.json", "items", "a trace", ImportNotes(), found.append)
        assert (found, fields) == (items, {"before": 12.5, "after": {"items": [1]}})
