from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports import kineto, layers, steps
from scaleproof.validator.calibration.imports.kineto import Trace
from scaleproof.validator.calibration.imports.names import is_communication
from scaleproof.validator.calibration.imports.reading import ImportNotes, ImportResult, Machines
from scaleproof.validator.calibration.imports.steps import StepTimes
from tests.validator.calibration.imports.logs import H100, all_reduce, host, kernel, launch, step, trace


def _write(folder: Path, text: str, name: str = "rank0.json") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _find(*texts: str, folder: Path, devices: int = 0) -> tuple[ImportResult, list[StepTimes]]:
    notes = ImportNotes()
    traces = [kineto.read(_write(folder, text, f"rank{number}.json"), notes) for number, text in enumerate(texts)]
    return steps.find("test", traces, devices, notes)


TWO = [*step(1, 0.0), *step(2, 1000.0)]


def test_a_step_is_divided_into_compute_communication_overlap_and_idle_time(tmp_path: Path) -> None:
    found, times = _find(trace(TWO), folder=tmp_path)
    assert [one.name for one in times] == ["ProfilerStep#1", "ProfilerStep#2"]
    for one in times:
        assert one.time_s == pytest.approx(1000e-6)
        assert one.compute_s == pytest.approx(500e-6)
        assert one.communication_s == pytest.approx(400e-6)
        assert one.both_s == pytest.approx(200e-6)
        assert one.exposed_s == pytest.approx(200e-6)
        assert one.idle_s == pytest.approx(300e-6)
        assert one.compute_s + one.exposed_s + one.idle_s == pytest.approx(one.time_s)
    alone = next(point for point in found.points if point.what == steps.ALONE)
    assert alone.seconds == pytest.approx((800e-6, 800e-6))
    assert found.machines == Machines(H100, 1, 2)


def test_collective_time_is_that_of_the_last_rank_to_arrive(tmp_path: Path) -> None:
    late = [*step(1, 0.0, waits=50.0), *step(2, 1000.0)]
    early = [*step(1, 0.0), *step(2, 1000.0, waits=70.0)]
    found, _ = _find(trace(late), trace(early, rank=1), folder=tmp_path)
    (point,) = [point for point in found.points if point.probe == "collective"]
    assert (point.what, point.group, point.size) == ("all_reduce", "2 ranks on 1 nodes", 2 * 2**20)
    assert point.seconds == pytest.approx((400e-6, 400e-6))
    assert not found.notes.lines()


def test_a_single_ranks_trace_is_reported_to_include_waiting(tmp_path: Path) -> None:
    found, _ = _find(trace(TWO), folder=tmp_path)
    assert any("include waiting for others; give all ranks' traces" in line for line in found.notes.lines())


def test_kernels_belong_to_the_step_that_launched_them(tmp_path: Path) -> None:
    events = [
        host("user_annotation", "ProfilerStep#1", 0.0, 100.0), launch(50.0, 1), kernel("gemm", 150.0, 40.0, 1),
        host("user_annotation", "ProfilerStep#2", 100.0, 100.0), launch(160.0, 2), kernel("gemm", 195.0, 20.0, 2),
    ]  # fmt: skip
    _, times = _find(trace(events), folder=tmp_path)
    assert [one.compute_s for one in times] == pytest.approx([40e-6, 20e-6])


def test_a_profile_without_communication_is_reported_and_used(tmp_path: Path) -> None:
    events = [event for event in TWO if "nccl" not in event["name"]]
    found, times = _find(trace(events, world=1), folder=tmp_path)
    assert [point.probe for point in found.points] == ["layer"]
    assert "no communication found; step times are used" in found.notes.lines()[0]
    assert times[0].alone_s == pytest.approx(1000e-6)


def test_a_trace_without_steps_is_one_step(tmp_path: Path) -> None:
    found, times = _find(trace([event for event in TWO if "Step" not in event["name"]]), folder=tmp_path)
    assert [one.name for one in times] == ["the whole trace"]
    assert any("no ProfilerStep found" in line for line in found.notes.lines())


def test_collectives_of_older_torch_have_times_without_sizes(tmp_path: Path) -> None:
    event = kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 0.0, 10.0, 1)
    found, times = _find(trace([event, kernel("gemm", 20.0, 10.0, 2)]), folder=tmp_path)
    assert times[0].communication_s == pytest.approx(10e-6)
    assert not [point for point in found.points if point.probe == "collective"]
    assert any("1 communications without size or collective" in line for line in found.notes.lines())


def test_all_gathers_count_what_is_received(tmp_path: Path) -> None:
    event = all_reduce(0.0, 10.0, 1, 0)
    event["args"] |= {"Collective name": "_allgather_base", "In msg nelems": 100, "Out msg nelems": 200}
    found, _ = _find(trace([event]), folder=tmp_path)
    (point,) = [point for point in found.points if point.probe == "collective"]
    assert (point.what, point.size) == ("all_gather", 400)


def test_compressed_and_truncated_traces_are_read_up_to_the_cut(tmp_path: Path) -> None:
    text = trace(TWO)
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    notes = ImportNotes()
    assert len(kineto.read(packed, notes).steps) == 2
    assert not notes.lines()
    cut = _write(tmp_path, text[: text.index("ProfilerStep#2") + 5])
    assert [one.name for one in kineto.read(cut, notes).steps] == ["ProfilerStep#1"]
    assert f"{cut}:" in notes.lines()[0]
    assert "traceEvents before it are used" in notes.lines()[0]
    packed.write_bytes(packed.read_bytes()[:-40])
    assert kineto.read(packed, ImportNotes()).works


_UNTIMED = '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}'


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "no", '{"traceEvents": []}', _UNTIMED, _UNTIMED.replace('"name"', '"cat": "b", "name"')]
)
def test_files_that_are_no_torch_trace_give_a_one_line_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a trace that torch\.profiler exports") as error:
        kineto.read(_write(tmp_path, text), ImportNotes())
    assert "\n" not in str(error.value)


def test_cpu_traces_have_operators_as_compute_and_gloo_as_communication(tmp_path: Path) -> None:
    events = [
        host("user_annotation", "ProfilerStep#1", 0.0, 100.0),
        host("cpu_op", "aten::linear", 10.0, 40.0), host("cpu_op", "aten::addmm", 12.0, 30.0),
        host("cpu_op", "c10d::allreduce_", 50.0, 5.0),
        host("user_annotation", "gloo:all_reduce", 55.0, 30.0, 2, **{"Input Dims": [[1000]], "Input type": ["float"]}),
    ]  # fmt: skip
    found, times = _find(trace(events), folder=tmp_path)
    assert times[0].compute_s == pytest.approx(40e-6)
    assert times[0].exposed_s == pytest.approx(30e-6)
    (point,) = [point for point in found.points if point.probe == "collective"]
    assert (point.what, point.size, len(point.ranks)) == ("all_reduce", 4000, 2)


def _annotated(folder: Path) -> Trace:
    """Two layers: what they launch forward, and what their operators' gradients launch on another thread."""
    events = [
        host("user_annotation", "ProfilerStep#1", 0.0, 1000.0),
        host("user_annotation", "Block_0", 10.0, 40.0), host("user_annotation", "Head", 60.0, 40.0),
        # a view has the number of the next operator that needs a gradient, but did not make it
        host("cpu_op", "aten::linear", 20.0, 10.0, **{"Sequence number": 5, "Fwd thread id": 0}), launch(25.0, 1),
        host("cpu_op", "aten::detach", 45.0, 1.0, **{"Sequence number": 6, "Fwd thread id": 0}),
        host("cpu_op", "aten::mm", 70.0, 10.0, **{"Sequence number": 6, "Fwd thread id": 0}), launch(75.0, 2),
        host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 200.0, 20.0, 2,
             **{"Sequence number": 6, "Fwd thread id": 1}), launch(205.0, 3, 2),
        host("cpu_op", "AddmmBackward0", 230.0, 20.0, 2, **{"Sequence number": 5, "Fwd thread id": 1}), launch(235.0, 4, 2),
        kernel("gemm", 300.0, 30.0, 1), kernel("gemm", 330.0, 7.0, 2), kernel("gemm", 340.0, 11.0, 3),
        kernel("gemm", 360.0, 60.0, 4),
    ]  # fmt: skip
    return kineto.read(_write(folder, trace(events)), ImportNotes())


def test_annotations_give_forward_and_backward_times_of_layers(tmp_path: Path) -> None:
    from scaleproof.simulator.model import Mlp

    model = Mlp(layers=2, inputs=8, hidden=16, outputs=4).build_layers()
    notes = ImportNotes()
    names = layers.parse_names(["Block=linear0", "Head=mlp.linear(16x4"])
    first, last = layers.times([_annotated(tmp_path)], model, names, notes)
    assert first.signature == "mlp.linear(8x16,first)"
    assert (first.forward_s, first.backward_s) == (pytest.approx([30e-6]), pytest.approx([60e-6]))
    assert (last.forward_s, last.backward_s) == (pytest.approx([7e-6]), pytest.approx([11e-6]))
    entry = layers.entries([first], 2, "fp32")[0]
    assert (entry["samples"], entry["forward"]) == ([2], ["30 us"])
    assert not notes.lines()
    layers.times([_annotated(tmp_path)], model, {"Block": "linear0"}, notes)
    assert "no annotation names mlp.linear(16x4,last)" in notes.lines()[0]


@pytest.mark.parametrize("text", ["Block", "=linear0", "Block="])
def test_malformed_layer_names_are_rejected(text: str) -> None:
    with pytest.raises(InputError, match="expected ANNOTATION=LAYER"):
        layers.parse_names([text])


def test_unknown_layers_are_rejected(tmp_path: Path) -> None:
    from scaleproof.simulator.model import Mlp

    model = Mlp(layers=2, inputs=8, hidden=16, outputs=4).build_layers()
    with pytest.raises(InputError, match=r"no layer is called 'gpt\.block'; give one of mlp\.linear"):
        layers.times([_annotated(tmp_path)], model, {"Block": "gpt.block"}, ImportNotes())
    with pytest.raises(InputError, match="several layers are called 'mlp'"):
        layers.times([_annotated(tmp_path)], model, {"Block": "mlp"}, ImportNotes())


_ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.just([[1]])
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_unusual_values_give_an_error_or_a_note_but_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document = json.loads(trace(TWO))
    places = [
        document,
        document["distributedInfo"],
        *document["traceEvents"],
        *(one["args"] for one in document["traceEvents"]),
    ]
    place = data.draw(st.sampled_from([one for one in places if one]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(_ANYTHING)
    try:
        _find(json.dumps(document), folder=tmp_path_factory.getbasetemp())
    except InputError as error:
        event(str(error).partition(":")[2])


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::internode::dispatch<false, 4>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8>(__nv_bfloat16*)",
        "nvshmemi_transfer_rma_nbi",
        "rccl_main_kernel",
        "oneccl_allreduce_kernel",
    ],
)
def test_communication_kernels_of_other_libraries_are_known(name: str) -> None:
    assert is_communication(name)
