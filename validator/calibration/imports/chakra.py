"""Import of MLCommons Chakra execution traces: computing and communicating nodes with their durations, as traces of one step.

Formats: schema/protobuf/et_def.proto of mlcommons/chakra, as length-prefixed messages, or as JSON with the same names (its
jsonizer), of ASTRA-sim (workload_graph), or of PyTorch's execution traces (nodes) that were linked with a device trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports import protobuf
from scaleproof.validator.calibration.imports.kineto import DeviceWork, Trace, TracedCollective, TraceSpan
from scaleproof.validator.calibration.imports.names import collective, collective_of_kernel, element_bytes, is_communication
from scaleproof.validator.calibration.imports.reading import ImportNotes, as_list, as_number, read_bytes

_EXPECTED: Final = "a Chakra execution trace (.et, or its JSON)"
_US: Final = 1e-6
# From et_def.proto: NodeType, CollectiveCommType, the fields of Node, and decoders of AttributeProto values by field.
_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
_WAYS: Final = {_SEND: "send", _RECEIVE: "recv"}
_TYPES: Final = {"COMP_NODE": _COMPUTE, "COMM_SEND_NODE": _SEND, "COMM_RECV_NODE": _RECEIVE, "COMM_COLL_NODE": _COLLECTIVE}
_OPS: Final[tuple[Op | None, ...]] = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "alltoall", "reduce_scatter", "reduce_scatter", None
)  # fmt: skip
_NAME, _TYPE, _START, _DURATION, _ATTRIBUTES = 2, 3, 6, 7, 10
_VALUES: Final[dict[int, Callable[[Any], Any]]] = {
    **dict.fromkeys((7, 9), protobuf.signed),
    **dict.fromkeys((11, 13), int),
    **dict.fromkeys((15, 17), lambda number: (number >> 1) ^ -(number & 1)),
    **dict.fromkeys((3, 5), protobuf.floating),
    **dict.fromkeys((19, 21, 23, 25), lambda content: int.from_bytes(content, "little")),
    27: bool,
    29: lambda content: content.decode("utf-8", errors="replace"),
    **dict.fromkeys((8, 10, 12, 14), lambda content: _integers(protobuf.message(content))),
}

Attributes = Mapping[str, Any]
# name, type, start and duration in microseconds, attributes
Node = tuple[str, int, float, float, Attributes]


def read(path: Path, files: int, notes: ImportNotes) -> Trace:
    """Reads one rank's trace. files: number of ranks' files. Raises InputError if it is not such a trace."""
    content = read_bytes(path)
    nodes = list(_json(path, content, notes) if content[:64].lstrip()[:1] in (b"{", b"[") else _messages(path, content, notes))
    usable = [node for node in nodes if node[1] in _TYPES.values()]
    if not usable:
        raise InputError(f"{path}: none of its {len(nodes)} nodes computes or communicates; expected {_EXPECTED}")
    on_device = [node for node in usable if not node[4].get("is_cpu_op", False)] or usable
    trace = Trace(path, rank=_rank(path), world=files)
    for name, kind, start_us, duration_us, attributes in on_device:
        start_s = start_us * _US
        exchange = None if kind == _COMPUTE else _exchange(kind, name, attributes, files)
        trace.works.append(DeviceWork(name, start_s, start_s + duration_us * _US, start_s, "", exchange, _WAYS.get(kind, "")))
    trace.world = max([files, *(exchange.size for _, exchange in trace.exchanges)])
    if not any(work.end_s > work.start_s for work in trace.works):
        notes.add(f"{path}: no node has a duration; sizes and groups are used, times are not (link it with a device trace)")
    elif not any(work.start_s for work in trace.works):
        notes.add(f"{path}: no node has a start time; nodes are assumed to run in sequence, without overlap")
        trace.works = list(_in_sequence(trace.works))
    start_s, end_s = min(work.start_s for work in trace.works), max(work.end_s for work in trace.works)
    trace.steps = [TraceSpan("the whole trace", start_s, end_s)]
    return trace


def _rank(path: Path) -> int:
    match = re.search(r"(\d+)(?:\.(?:et|json|chakra|gz))*$", path.name)
    return int(match[1]) if match else -1


def _in_sequence(works: Sequence[DeviceWork]) -> Iterator[DeviceWork]:
    at_s = 0.0
    for work in works:
        end_s = at_s + work.end_s - work.start_s
        yield work._replace(start_s=at_s, end_s=end_s, launched_s=at_s)
        at_s = end_s


def _messages(path: Path, content: bytes, notes: ImportNotes) -> Iterator[Node]:
    """Nodes of the protobuf form; the first message holds metadata."""
    read = 0
    try:
        for part in protobuf.delimited(content):
            fields = protobuf.message(part)
            if read:
                yield _node(fields)
            read += 1
    except protobuf.DamagedError as error:
        if read < 2:
            raise InputError(f"{path}: no messages of protobuf ({error}); expected {_EXPECTED}") from None
        notes.add(f"{path}: node {read}: {error}; the {read - 1} nodes before it are used")


def _node(fields: protobuf.Message) -> Node:
    start_us, duration_us = protobuf.integer(fields, _START), protobuf.integer(fields, _DURATION)
    attributes = dict(map(_attribute, fields.get(_ATTRIBUTES, [])))
    return protobuf.text(fields, _NAME), protobuf.integer(fields, _TYPE), float(start_us), float(duration_us), attributes


def _attribute(content: Any) -> tuple[str, Any]:
    if not isinstance(content, bytes):
        raise protobuf.DamagedError("an attribute is not a message")
    fields = protobuf.message(content)
    values = [(number, entries[-1]) for number, entries in fields.items() if number in _VALUES]
    try:
        return protobuf.text(fields, 1), _VALUES[values[0][0]](values[0][1]) if values else None
    except (TypeError, ValueError, AttributeError):
        raise protobuf.DamagedError("an attribute's value has another type than its field") from None


def _integers(fields: protobuf.Message) -> list[int]:
    """Numbers of a list, packed or not."""
    parts = [protobuf.packed(value) if isinstance(value, bytes) else [value] for value in fields.get(1, [])]
    return [number for part in parts for number in part]


def _json(path: Path, content: bytes, notes: ImportNotes) -> Iterator[Node]:
    """Nodes of one of the JSON forms; several documents may follow one another, as written by the jsonizer."""
    text, at, decoder = content.decode("utf-8", errors="replace"), 0, json.JSONDecoder()
    documents: list[Any] = []
    while at < len(text.rstrip()):
        try:
            document, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, getattr(error, "pos", at)) + 1
            if len(documents) < 2:
                raise InputError(f"{path}:{line}: not JSON; expected {_EXPECTED}") from None
            notes.add(f"{path}:{line}: not JSON from here on; the {len(documents) - 1} nodes before it are used")
            break
        documents.append(document)
    first = documents[0]
    if isinstance(first, dict) and isinstance(first.get("workload_graph"), list):
        return map(_from_astra_sim, filter(_is_mapping, first["workload_graph"]))
    if isinstance(first, dict) and isinstance(first.get("nodes"), list) and "schema" in first:
        return _from_pytorch([node for node in first["nodes"] if isinstance(node, dict)])
    nodes = documents if len(documents) > 1 else first if isinstance(first, list) else documents
    return map(_from_jsonizer, filter(_is_mapping, nodes))


def _is_mapping(node: object) -> bool:
    return isinstance(node, dict)


def _number(value: object) -> float:
    return as_number(value) or 0.0


def _from_jsonizer(node: Mapping[str, Any]) -> Node:
    """Node in protobuf's JSON mapping, in which 64-bit numbers are text."""
    attributes: dict[str, Any] = {}
    for attribute in filter(_is_mapping, as_list(node.get("attr"))):
        value = next((value for key, value in attribute.items() if key.lower().rstrip("_").endswith("val")), None)
        listed = next((value for key, value in attribute.items() if key.endswith("List")), None)
        attributes[str(attribute.get("name"))] = listed.get("values") if isinstance(listed, dict) else value
    kind = node.get("type", 0)
    return (
        str(node.get("name", "")),
        kind if isinstance(kind, int) else _TYPES.get(str(kind), 0),
        _number(node.get("startTimeMicros", node.get("start_time_micros"))),
        _number(node.get("durationMicros", node.get("duration_micros"))),
        attributes,
    )


def _from_astra_sim(node: Mapping[str, Any]) -> Node:
    return str(node.get("Name", "")), int(_number(node.get("NodeType"))), 0.0, _number(node.get("runtime")), node


def _from_pytorch(nodes: Sequence[dict[str, Any]]) -> Iterator[Node]:
    """Kernels; those of NCCL get the attributes of the operator that launched them."""
    by_id = {str(node.get("id")): node for node in nodes}
    for node in nodes:
        own = _attributes_of(node)
        name, start_us, duration_us = str(node.get("name", "")), _number(node.get("ts")), _number(node.get("dur"))
        if str(node.get("cat", "")).lower() == "kernel":
            launcher = by_id.get(str(node.get("ctrl_deps", node.get("parent"))), {})
            attributes = _attributes_of(launcher) | own
            yield name, _COLLECTIVE if is_communication(name) else _COMPUTE, start_us, duration_us, attributes
        elif own.get("collective_name"):
            yield name, _COLLECTIVE, start_us, 0.0, own | {"is_cpu_op": True}


def _attributes_of(node: Mapping[str, Any]) -> dict[str, Any]:
    attributes = filter(_is_mapping, as_list(node.get("attrs")))
    return {str(attribute.get("name")): attribute.get("value") for attribute in attributes}


def _exchange(kind: int, name: str, attributes: Attributes, files: int) -> TracedCollective:
    """Communication of a node. Chakra gives the input size per rank, which for all_gather is a part of the result."""
    group = next((str(attributes[key]) for key in ("pg_name", "comm_group") if attributes.get(key)), "")
    if kind in (_SEND, _RECEIVE):
        ends = (int(_number(attributes.get("comm_src"))), int(_number(attributes.get("comm_dst"))))
        return TracedCollective("sendrecv", _number(attributes.get("comm_size")), "", group, tuple(sorted(ends)), 2)
    members = _members(attributes)
    sizes = (int(_number(attributes.get(key))) for key in ("pg_size", "group_size", "comm_group_size"))
    size = next((size for size in sizes if size), 0) or len(members) or files
    members = members if len(members) == size else ()
    elements = str(attributes.get("dtype", ""))
    if attributes.get("collective_name"):
        count = max(_number(attributes.get("in_msg_nelems")), _number(attributes.get("out_msg_nelems")))
        op, size_bytes = collective(str(attributes["collective_name"])), count * (element_bytes(elements) or 0)
    else:
        number = as_number(attributes.get("comm_type"))
        known = number is not None and 0 <= number < len(_OPS)
        op = _OPS[int(number)] if known and number is not None else collective_of_kernel(name) or collective(name)
        size_bytes = _number(attributes.get("comm_size")) * (size if op == "all_gather" else 1)
    return TracedCollective(op if size_bytes else None, size_bytes, elements, group, members, size)


def _members(attributes: Attributes) -> tuple[int, ...]:
    keys = ("pg_ranks", "group_ranks", "process_group_ranks")
    ranks = next((attributes[key] for key in keys if attributes.get(key)), ())
    return tuple(int(number) for number in re.findall(r"\d+", str(ranks)))
