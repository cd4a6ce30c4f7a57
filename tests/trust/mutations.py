"""Mutations of valid files, drawn by hypothesis for the fuzz tests.

A document is changed as data (keys that are dropped, doubled, renamed, of another type; numbers that are huge, negative or
none; other units; markup; aliases and tags of YAML) and then, sometimes, as the bytes that it is written in.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import yaml
from hypothesis import strategies as st

Form = Literal["yaml", "json", "text", "bytes"]
Draw = Callable[[st.SearchStrategy[Any]], Any]
Place = tuple[Any, Any]

# Placeholder for text that no library writes, replaced in the final text.
_RAW: Final = "@raw{}@"
_BOMB: Final = "[&a [x, x, x, x, x, x, x, x], &b [*a, *a, *a, *a, *a, *a, *a, *a], &c [*b, *b, *b, *b, *b, *b, *b, *b], \
&d [*c, *c, *c, *c, *c, *c, *c, *c], &e [*d, *d, *d, *d, *d, *d, *d, *d], &f [*e, *e, *e, *e, *e, *e, *e, *e], \
&g [*f, *f, *f, *f, *f, *f, *f, *f], &h [*g, *g, *g, *g, *g, *g, *g, *g]]"
RAW: Final = {
    "yaml": (
        "!!python/object/apply:os.getcwd []", "!!python/name:os.system", "!!binary aGVsbG8=", "!!set {a, b}",
        "!!omap [a: 1]", "!unknown x", "&a [*a]", "*nowhere", "<<: {a: 1}", "{<<: [1]}", "? [a]", "2001-02-30",
        "12:30:45", "0o17", "0b1", ".nan", "-.inf", "1" * 5000, "0x" + "f" * 3000, "|\n  text", '"\\x1b[31m"', '"\\0"', "'",
        "{", "[" * 20_000, "- " * 20_000, "[" * 30 + "]" * 30, "{a: " * 200 + "1" + "}" * 200, _BOMB, "\t",
        "%TAG ! tag:x,2000:", "--- 1\n--- 2", "!!float nan", "!!int x", "!!bool 3",
        "!!timestamp 1", "!!null x", "=", "1e999", "~", "{? {a: b} : c}",
    ),
    "json": (
        "NaN", "-Infinity", "1e999", "1" * 5000, "-" + "9" * 400, "1E-400", "[" * 2000, "[" * 2000 + "]" * 2000,
        '{"a":' * 1500 + "1" + "}" * 1500, '"\\ud800"', '"\\u0000"', "{", "[1,]", "'x'", "// x", "\ufeff", "0x10", "01", "",
    ),
}  # fmt: skip
WORDS: Final = (
    "", " ", "nan", "inf", "\u202egnp.exe", "\x1b[31mred\x1b[0m", "\x07", "a\x00b", "\x85", "<script>alert(1)</script>",
    "{{ 7 * 7 }}", "../../etc/passwd", "/dev/zero", "/dev/stdin", "x" * 50_000, "é" * 300, "😀", "%s%n", "$x", "=1+1", "null",
    "base", "kind", "a\nb", "-", "--help", "python:os:getcwd", "python:nothing_of_that_name:x", "hf:nowhere", "ring", "tree",
    "all", "gpt", "data_parallel", "fp8", "dgx1", "h100-80gb-sxm", "\ud800", "ß", "１２", "1e3", "0", "-1", "1,5",
)  # fmt: skip
NUMBERS: Final = (
    0, 1, -1, 2, 3, 7, 1000, 65_536, 1_000_000, 2**31, 2**53 + 1, 2**63, 10**19, 10**30, 10**400, -(2**63), 0.0, -0.0, 0.1,
    -0.5, 1.5, 1e-12, 1e-300, 5e-324, 1e15, 1e100, 1e300, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
QUANTITIES: Final = (
    "0 us", "1 ns", "-3 us", "3", "3 parsec", "1e400 s", "nan s", "1e300 s", "100 d", "1e-300 s", "0 Gbit/s", "1 bit/s",
    "1e300 Gbit/s", "1e-300 Gbit/s", "0.0001 bit/s", "25 gbit/s", "25 Gbit", "25 MiB", "1 B", "0 B", "1e300 B",
    "9" * 400 + " B", "1 EiB", "1e-9 B", "1 FLOP/s", "1e300 FLOP/s", "0 FLOP/s", "1 W", "1e300 W", "0 USD/h", "1e300 USD/h",
    "50%", "-5%", "1e400%", "100 %", "१ us", "1 _us", "1__0 us", ".5e-3 ms", "∞ s",
)  # fmt: skip


# What is done to a value; half of it keeps its type, so that it is not rejected before anything is computed with it.
_CHANGES: Final = (
    *["same kind"] * 5, *["number"] * 4, "value", "value", "raw", "drop", "double", "rename", "another", "wrap", "add", "whole",
)  # fmt: skip


def odd_value() -> st.SearchStrategy[Any]:
    """An unexpected value for a field."""
    nested = [
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"kind": "x"},
        {"base": "x"},
        {"a": {"b": {"c": [1, {"d": 2}]}}},
        list(range(300)),
    ]
    return st.one_of(
        st.sampled_from([None, True, False]),
        st.sampled_from(NUMBERS),
        st.sampled_from(QUANTITIES),
        st.sampled_from(WORDS),
        st.sampled_from(nested).map(copy.deepcopy),
        st.integers(-3, 130),
        st.text(max_size=12),
    )


def mutated(draw: Draw, content: bytes, form: Form) -> bytes:
    """A file's content with a small mutation."""
    if form in ("text", "bytes"):
        return _bytes(draw, content)
    data = yaml.safe_load(content) if form == "yaml" else json.loads(content)
    raw: list[str] = []
    if draw(st.booleans()):
        # most of these are still valid, and everything is computed with them
        for parent, key in _some_leaves(draw, data):
            parent[key] = _same_kind(draw, parent[key], [])
        return _dumped(data, form).encode()
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        data = _change(draw, data, form, raw)
    text = _dumped(data, form)
    for number, one in enumerate(raw):
        for quoted in (f'"{_RAW.format(number)}"', f"'{_RAW.format(number)}'", _RAW.format(number)):
            text = text.replace(quoted, one)
    content = text.encode("utf-8", "surrogatepass")
    return _bytes(draw, content) if draw(st.integers(0, 5)) == 5 else content


def _dumped(data: Any, form: str) -> str:
    if form == "json":
        return json.dumps(data, indent=1)
    dumped: str = yaml.dump(data, Dumper=yaml.SafeDumper, allow_unicode=True, sort_keys=False)
    return dumped


def _places(data: Any) -> Iterator[Place]:
    """Container and key of every value."""
    keys = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])


def _leaves(data: Any) -> list[Place]:
    return [(parent, key) for parent, key in _places(data) if not isinstance(parent[key], dict | list)]


def _some_leaves(draw: Draw, data: Any) -> list[Place]:
    """Places of one or two numbers."""
    numbers = [(parent, key) for parent, key in _leaves(data) if str(parent[key])[:1].isdigit()]
    return [numbers[draw(st.integers(0, len(numbers) - 1))] for _ in range(draw(st.integers(1, 2)))] if numbers else []


def _change(draw: Draw, data: Any, form: str, raw: list[str]) -> Any:
    places = list(_places(data))
    if not places:
        return draw(odd_value())
    leaves = _leaves(data)
    some = leaves if leaves and draw(st.integers(0, 3)) < 3 else places
    parent, key = some[draw(st.integers(0, len(some) - 1))]
    how = draw(st.sampled_from(_CHANGES))
    if how == "value":
        parent[key] = draw(odd_value())
    elif how == "number":
        parent[key] = _other_number(draw, parent[key])
    elif how == "same kind":
        parent[key] = _same_kind(draw, parent[key], [holder[at] for holder, at in places])
    elif how == "raw":
        raw.append(draw(st.sampled_from(RAW[form])))
        parent[key] = _RAW.format(len(raw) - 1)
    elif how == "drop":
        del parent[key]
    elif how == "double":
        times = draw(st.sampled_from([2, 3, 100]))
        parent[key] = [copy.deepcopy(parent[key]) for _ in range(times)]
    elif how == "rename" and isinstance(parent, dict):
        name = draw(st.sampled_from(WORDS) | st.sampled_from(sorted(map(str, parent))))
        parent[name] = parent.pop(key)
    elif how == "another":
        other, its = places[draw(st.integers(0, len(places) - 1))]
        parent[key] = copy.deepcopy(other[its])
    elif how == "wrap":
        for _ in range(draw(st.sampled_from([1, 2, 60]))):
            parent[key] = [parent[key]] if draw(st.booleans()) else {"x": parent[key]}
    elif how == "add" and isinstance(parent[key], dict):
        parent[key][draw(st.sampled_from(WORDS))] = draw(odd_value())
    elif how == "whole":
        return draw(odd_value())
    return data


def _same_kind(draw: Draw, value: Any, others: list[Any]) -> Any:
    """Another value of the same kind: of the document, or one that a field of the kind may well have."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw(st.sampled_from([0, 1, 2, 3, 5, 8, 17, 64, 100, 4096, 50_000, 10**6, 10**9]) | st.integers(0, 40))
    if isinstance(value, float):
        return draw(st.sampled_from([0.0, 1e-9, 0.01, 0.5, 1.0, 3.7, 1e6, 1e15]) | st.floats(0, 10))
    if isinstance(value, str) and value[:1].isdigit():
        number = draw(st.sampled_from(["0", "1", "7.5", "1e-6", "1e-12", "1e6", "1e12", "1e200", "1e-200"]))
        return draw(
            st.sampled_from([f"{number} {value.partition(' ')[2]}"] * 3 + [QUANTITIES[0]]) | st.sampled_from(QUANTITIES)
        )
    same_kind = [one for one in others if type(one) is type(value)] or [value]
    return copy.deepcopy(draw(st.sampled_from(same_kind)))


def _other_number(draw: Draw, value: Any) -> Any:
    """A different number, also within a quantity; other values become a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return draw(st.sampled_from(NUMBERS))
    if isinstance(value, str):
        number, blank, unit = value.partition(" ")
        factor = draw(st.sampled_from(["e3", "e6", "e12", "e30", "e300", "e400", "e-6", "e-30", "e-320", "x"]))
        return f"{draw(st.sampled_from(['', '-', '0', '.']))}{number}{factor}{blank}{unit}"
    factor = draw(st.sampled_from([-1, 0, 2, 10, 1000, 10**6, 10**9, 10**20, 0.5, 1e-9, 1e300]))
    try:
        return value * factor
    except OverflowError:
        return 10**400


def _bytes(draw: Draw, content: bytes) -> bytes:
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        content = _bytes_once(draw, content)
    return content


def _bytes_once(draw: Draw, content: bytes) -> bytes:
    how = draw(st.sampled_from(["cut", "digits", "insert", "flip", "repeat", "line", "nul", "empty", "noise", "spaces"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if how == "cut":
        return content[:at]
    if how == "digits":
        begin = next((i for i in range(at, len(content)) if 48 <= content[i] < 58), at)
        number = draw(st.sampled_from([*map(str, NUMBERS), "9" * 5000, "1e9", "-7", "0x1F", "1.2.3"]))
        return content[:begin] + number.encode() + content[begin + 1 :]
    if how == "insert":
        word = draw(st.sampled_from([*WORDS, *RAW["yaml"], *RAW["json"]])).encode("utf-8", "surrogatepass")
        return content[:at] + word + content[at:]
    if how == "flip":
        return content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
    if how == "repeat":
        return content[:at] + content[at : at + draw(st.integers(1, 200))] * draw(st.sampled_from([2, 50])) + content[at:]
    if how == "line":
        lines = content.split(b"\n")
        number = draw(st.integers(0, len(lines) - 1))
        return b"\n".join(lines[:number] + lines[number + 1 :] + draw(st.sampled_from([[], [lines[number]]])))
    if how == "nul":
        return content[:at] + b"\0" * draw(st.sampled_from([1, 5000])) + content[at:]
    if how == "empty":
        return b""
    if how == "spaces":
        return content.replace(b" ", draw(st.sampled_from([b"", b"  ", b"\t", b"\xc2\xa0"])))
    return content[:at] + draw(st.binary(max_size=40)) + content[at:]
