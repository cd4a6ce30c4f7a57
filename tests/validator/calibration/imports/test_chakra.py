from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports import chakra, protobuf, steps
from scaleproof.validator.calibration.imports.kineto import Trace
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.probe.points import Point

COMPUTE, COLLECTIVE = 4, 7
ALL_REDUCE, ALL_GATHER, BARRIER = 0, 2, 9


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    more, number = number & 0x7F, number >> 7
    return bytes([more | 0x80]) + _varint(number) if number else bytes([more])


def _field(number: int, value: int | bytes | float | str) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _attribute(name: str, field: int, value: int | bytes | float | str) -> bytes:
    return _field(10, _field(1, name) + _field(field, value))


def _node(number: int, name: str, kind: int, start: int, duration: int, *attributes: bytes) -> bytes:
    body = _field(1, number) + _field(2, name) + _field(3, kind) + _field(6, start) + _field(7, duration)
    return body + b"".join(attributes)


def _collective(number: int, kind: int, size: int, start: int, duration: int, ranks: bytes = b"\x00\x01\x02\x03") -> bytes:
    reported = [_attribute("is_cpu_op", 27, 0), _attribute("comm_type", 9, kind), _attribute("comm_size", 9, size)]
    reported += [_attribute("pg_name", 29, "0"), _attribute("pg_ranks", 10, _field(1, ranks)), _attribute("weight", 3, 0.5)]
    return _node(number, f"collective {number}", COLLECTIVE, start, duration, *reported)


NODES = [
    _node(1, "aten::mm", COMPUTE, 0, 5, _attribute("is_cpu_op", 27, 1)),
    _node(2, "gemm", COMPUTE, 10, 300, _attribute("is_cpu_op", 27, 0)),
    _collective(3, ALL_REDUCE, 4096, 210, 200),
    _collective(4, ALL_GATHER, 1000, 410, 50),
    _collective(5, BARRIER, 0, 460, 10),
]


def _messages(nodes: Sequence[bytes] = NODES) -> bytes:
    parts = [_field(1, "0.0.4"), *nodes]
    return b"".join(_varint(len(part)) + part for part in parts)


def _read(folder: Path, content: bytes, name: str = "trace.3.et", files: int = 1) -> tuple[Trace, ImportNotes]:
    path, notes = folder / name, ImportNotes()
    path.write_bytes(content)
    return chakra.read(path, files, notes), notes


def _collectives(trace: Trace) -> list[Point]:
    return [point for point in steps.find("test", [trace], 0, ImportNotes())[0].points if point.probe == "collective"]


def test_nodes_are_classified_as_compute_or_communication(tmp_path: Path) -> None:
    trace, notes = _read(tmp_path, _messages())
    assert (trace.rank, trace.world, notes.lines()) == (3, 4, [])
    (times,) = steps.step_times(trace, 0)
    assert times.compute_s == pytest.approx(300e-6)
    assert times.communication_s == pytest.approx(260e-6)
    assert times.both_s == pytest.approx(100e-6)
    # what a rank puts into an all_gather is its part of it
    assert [(point.what, point.size, len(point.ranks)) for point in _collectives(trace)] == [
        ("all_reduce", 4096, 4), ("all_gather", 4000, 4)
    ]  # fmt: skip


def test_truncated_traces_are_read_up_to_the_cut(tmp_path: Path) -> None:
    trace, notes = _read(tmp_path, _messages()[:-7])
    assert [point.what for point in _collectives(trace)] == ["all_reduce", "all_gather"]
    assert "it ends within a message; the 4 nodes before it are used" in notes.lines()[0]


def test_traces_without_durations_give_sizes_only(tmp_path: Path) -> None:
    trace, notes = _read(tmp_path, _messages([_collective(1, ALL_REDUCE, 4096, 0, 0)]))
    assert not _collectives(trace)
    assert "no node has a duration" in notes.lines()[0]
    assert steps.calls([trace]) == [("all_reduce", "4", "4.00 KiB", "1", "unknown")]


def test_nodes_without_start_times_are_sequential(tmp_path: Path) -> None:
    nodes = [_node(1, "gemm", COMPUTE, 0, 300), _collective(2, ALL_REDUCE, 4096, 0, 200)]
    trace, notes = _read(tmp_path, _messages(nodes))
    assert "assumed to run in sequence" in notes.lines()[0]
    (times,) = steps.step_times(trace, 0)
    assert (times.time_s, times.both_s) == (pytest.approx(500e-6), pytest.approx(0.0))


def _jsonizer() -> str:
    def attr(name: str, kind: str, value: Any) -> dict[str, Any]:
        return {"name": name, kind: value}

    reported = [attr("comm_type", "int64Val", "0"), attr("comm_size", "int64Val", "4096"), attr("is_cpu_op", "boolVal", False)]
    reported += [attr("pg_ranks", "int64List", {"values": ["0", "1", "2", "3"]})]
    nodes = [
        {"version": "0.0.4"},
        {"id": "2", "name": "gemm", "type": "COMP_NODE", "startTimeMicros": "10", "durationMicros": "300"},
        {"id": "3", "name": "c", "type": "COMM_COLL_NODE", "startTimeMicros": "210", "durationMicros": "200", "attr": reported},
    ]
    return "\n".join(json.dumps(node, indent=2) for node in nodes)


def _astra_sim() -> str:
    nodes = [
        {"Id": 1, "Name": "gemm", "NodeType": COMPUTE, "is_cpu_op": False, "runtime": 300},
        {"Id": 2, "Name": "c", "NodeType": COLLECTIVE, "is_cpu_op": False, "runtime": 200, "comm_type": 0, "comm_size": 4096},
    ]
    return json.dumps({"workload_graph": nodes})


def _pytorch() -> str:
    values = {"collective_name": "allreduce", "dtype": "Float", "in_msg_nelems": 1024, "out_msg_nelems": 1024, "pg_size": 4}
    nodes = [
        {"id": 7, "name": "record_param_comms", "attrs": [{"name": name, "value": value} for name, value in values.items()]},
        {"id": 8, "name": "gemm", "cat": "kernel", "ts": 10, "dur": 300, "ctrl_deps": 1},
        {"id": 9, "name": "ncclDevKernel_AllReduce_Sum_f32", "cat": "kernel", "ts": 210, "dur": 200, "ctrl_deps": 7},
    ]
    return json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes})


@pytest.mark.parametrize("form", [_jsonizer, _astra_sim, _pytorch])
def test_all_json_forms_are_equivalent(form: Any, tmp_path: Path) -> None:
    trace, _ = _read(tmp_path, form().encode(), "trace.0.json", files=4)
    (point,) = _collectives(trace)
    assert (point.what, point.size, len(point.ranks)) == ("all_reduce", 4096, 4)
    assert point.seconds == pytest.approx((200e-6,))
    assert steps.step_times(trace, 0)[0].compute_s == pytest.approx(300e-6)


def test_truncated_json_is_read_up_to_the_cut(tmp_path: Path) -> None:
    trace, notes = _read(tmp_path, (_jsonizer() + "\n{\n").encode(), "trace.json", files=4)
    assert _collectives(trace)
    assert "not JSON from here on; the 2 nodes before it are used" in notes.lines()[0]


@pytest.mark.parametrize(
    "content", [b"", b"\x05hello", b"nothing of the kind", b"{", b"[1, 2]", b'{"traceEvents": []}', b"\xff" * 20]
)
def test_files_that_are_no_chakra_trace_give_a_one_line_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a Chakra execution trace") as error:
        _read(tmp_path, content)
    assert "\n" not in str(error.value)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_traces_give_an_error_or_a_note_but_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(_messages())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        _read(tmp_path_factory.getbasetemp(), bytes(content))
    except InputError:
        event("refused")


_ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.just([[1]])
)


@pytest.mark.parametrize("form", [_jsonizer, _astra_sim, _pytorch])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_unusual_values_give_an_error_or_a_note_but_no_traceback(
    form: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = form()
    value = data.draw(
        st.sampled_from([f": {one}" for one in ('"0"', "4", "7", "200", "4096", "[", "{", "true", '"COMM_COLL_NODE"')])
    )
    changed = text.replace(value, f": {json.dumps(data.draw(_ANYTHING))}" + (value[2:] if value[2:] in "[{" else ""), 1)
    try:
        trace, _ = _read(tmp_path_factory.getbasetemp(), changed.encode(), "odd.json", files=2)
    except InputError:
        event("refused")
    else:
        _collectives(trace)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_varints_are_decoded_unchanged(number: int) -> None:
    fields = protobuf.message(_field(9, number))
    assert protobuf.signed(protobuf.integer(fields, 9)) == number
