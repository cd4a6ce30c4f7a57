"""What a script decides by a value is found in its source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scaleproof.validator.capture.communication.branches import Expression, decides


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if flag.item() > 0: pass", True),
        ("while not flag.item(): pass", True),
        ("x = torch.zeros(flag.item(), 4)", True),
        ("x = values[: flag.item()]", True),
        ("for step in range(flag.item()): pass", True),
        ("print(flag.item())", False),
        ("assert [one for one in values if flag.item()]", False),
        ("found = flag.item()\nassert [one for one in values if found]", False),
        ("if rank == 0: print(flag.item())", False),
        ("total += flag.item()\nprint(total / 8)", False),
        ("total += flag.item()\nmean = total / 8\nif mean > 3: pass", True),
        # in another function the name is another variable
        ("def read():\n    n = flag.item()\n    print(n)\ndef other(n):\n    if n: pass", False),
        ("def stop():\n    n = flag.item()\n    return n > 0\nwhile not stop(): pass", True),
        ("def stop():\n    return flag.item() > 0\nprint(stop())", False),
        (
            "class Trainer:\n    def read(self):\n        self.n = flag.item()\n    def stop(self):\n        if self.n: pass",
            True,
        ),
    ],
)
def test_a_value_decides_where_a_branch_or_a_size_depends_on_it(source: str, expected: bool, tmp_path: Path) -> None:
    assert decides(place_of(source, "flag.item()", tmp_path)) == expected


def test_a_call_decides_by_what_it_writes_to_its_arguments(tmp_path: Path) -> None:
    source = "dist.all_reduce(flag)\ndist.all_reduce(other)\nif flag > 0: pass"
    assert decides(place_of(source, "dist.all_reduce(flag)", tmp_path), writes=True)
    assert not decides(place_of(source, "dist.all_reduce(other)", tmp_path), writes=True)
    source = (
        "dist.all_gather_object(found, {'rank': rank})\ndist.all_gather_object(ranks, {'rank': rank})\nif rank or found: pass"
    )
    assert decides(place_of(source, "dist.all_gather_object(found, {'rank': rank})", tmp_path / "sent"), writes=True)
    assert not decides(place_of(source, "dist.all_gather_object(ranks, {'rank': rank})", tmp_path / "sent"), writes=True)


def place_of(source: str, part: str, folder: Path) -> Expression:
    """The place of a part of a source."""
    folder.mkdir(exist_ok=True)
    path = folder / "train.py"
    path.write_text(source)
    (node,) = (one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.expr) and ast.unparse(one) == part)
    return Expression(str(path), node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
