from __future__ import annotations

import ast
import copy
import importlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import printable

_ROOT: Final = Path(__file__).parents[3]
_FOLDERS: Final = ("simulator", "validator", "reports", "commands")
_BASES: Final = ("Error", "Exception", "Interrupt")
# Arguments of errors that take more than a message.
_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "FieldError": (("batch", "lengths", 0), "too long"),
    "ScenarioError": (["a.yaml:1:2: batch: too large", "a.yaml:3:4: model: unknown"],),
    "BatchError": ("no such batch", 8),
}


def exceptions() -> Iterator[type[BaseException]]:
    """All exceptions that the package defines."""
    for path in sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not any(f"{base}):" in source or f"{base}, " in source for base in _BASES):
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith(_BASES) for base in node.bases):
                module = importlib.import_module(".".join(("scaleproof", *path.relative_to(_ROOT).with_suffix("").parts)))
                yield getattr(module, node.name)


@pytest.mark.full
def test_exceptions_come_back_from_other_processes_as_they_were() -> None:
    """Workers of studies and ranks hand exceptions over by pickling them."""
    found = list(exceptions())
    assert {"FieldError", "ScenarioError", "RankError", "ContactLostError"} <= {one.__name__ for one in found}
    for kind in found:
        error = kind(*_ARGUMENTS.get(kind.__name__, ("one message",)))
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is kind
            assert str(again) == str(error)
            assert vars(again) == vars(error)


@given(st.text(max_size=3000))
def test_printable_text_has_no_control_characters(text: str) -> None:
    printed = printable(text)
    assert all(one.isprintable() or one == "\n" for one in printed)
    assert printed.count("\n") == text.count("\n")


def test_printable_text_is_unchanged_and_long_lines_are_cut_in_the_middle() -> None:
    assert printable("model.layers: ‘é’ × 3\nand more") == "model.layers: ‘é’ × 3\nand more"
    assert printable("\x1b[31mred\x9b\ud800") == r"\x1b[31mred\x9b\ud800"
    printed = printable("begin" + "x" * 100_000 + "end")
    assert len(printed) < 1100
    assert printed.startswith("begin")
    assert printed.endswith("end")
