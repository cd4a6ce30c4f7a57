from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError


def test_values_have_the_line_and_column_of_their_text() -> None:
    located = yaml_file.parse("a: 1\nb:\n  - x: 2\n  - {y: 3}\n", "f.yaml")
    assert located.data == {"a": 1, "b": [{"x": 2}, {"y": 3}]}
    assert located.place(("a",)) == "f.yaml:1:1"
    assert located.place(("b", 0, "x")) == "f.yaml:3:5"
    assert located.place(("b", 1, "y")) == "f.yaml:4:6"


def test_an_absent_value_has_the_place_of_its_nearest_ancestor() -> None:
    located = yaml_file.parse("a:\n  b: 1\n", "f.yaml")
    assert located.place(("a", "c", "d")) == "f.yaml:1:1"


def test_an_inserted_part_keeps_its_own_places() -> None:
    located = yaml_file.parse("model: gpt\n", "f.yaml")
    located.graft(("model",), yaml_file.parse("\nlayers: 3\n", "gpt.yaml"))
    assert located.data == {"model": {"layers": 3}}
    assert located.place(("model", "layers")) == "gpt.yaml:2:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", r"f.yaml:2:1: not valid YAML|f.yaml:1:\d+: not valid YAML"),
        ("a: 1\na: 2\n", "f.yaml:2:1: a: given twice"),
        ("", "f.yaml:1:1: the file is empty"),
        ("a: b: c", "f.yaml:1:5: not valid YAML"),
        ("{[1]: 2}", "a key must be a word"),
        ("when: 2026-99-99", "cannot be read"),
        ("- " * 2000, "f.yaml:1:201: nested too deeply"),
        # LibYAML's loader would overflow the stack and kill the process
        ("[" * 200_000, "f.yaml:1:101: nested too deeply"),
        ("? " * 200_000, "nested too deeply"),
        ('a: "\\x1b[2J"', "f.yaml:1:4: .* has control characters"),
        ('a: "\\ud800"', "has control characters|not valid YAML"),
        ("a: " + "1" * 5000, "cannot be read"),
        ("a: !!bool 3", "f.yaml:1:4: '3' cannot be read"),
        ("a: !!timestamp 1", "f.yaml:1:4: '1' cannot be read"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_invalid_yaml_gives_an_error_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        yaml_file.parse(text, "f.yaml")


def test_yaml_tags_do_not_execute_code() -> None:
    located = yaml_file.parse("a: !!python/object/apply:os.getcwd []", "f.yaml")
    assert located.data == {"a": []}


def test_nested_aliases_do_not_exhaust_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "_MAX_NODES", 10_000)
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    for previous, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{','.join(['*' + previous] * 10)}]\n"
    with pytest.raises(ScenarioError, match="are aliases nested"):
        yaml_file.parse(bomb, "f.yaml")


def test_missing_and_unreadable_files_give_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="No such file"):
        yaml_file.read(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(NotFoundError, match="not UTF-8"):
        yaml_file.read(tmp_path / "latin.yaml")
    with pytest.raises(NotFoundError):
        yaml_file.read(tmp_path)
