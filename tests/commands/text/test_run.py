"""The console text of a run; unknown quantities are omitted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions import runs
from scaleproof.reports.descriptions.runs import out_of_memory
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.bottleneck import bound, limit
from scaleproof.simulator.run.records import Distribution
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
HYBRID = "strategy={kind: hybrid, workers: 2, stages: 3, microbatches: 6}"


def describe(run: Run) -> str:
    return described(runs.describe(run))


def rows(text: str) -> dict[str, list[str]]:
    """The lines below each title."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        title, row = line[2:15].strip(), line[17:]
        found.setdefault(title or list(found)[-1], []).append(row)
    return found


def test_the_text_shows_speed_breakdown_baseline_memory_energy_and_cost(small: Make) -> None:
    run = predict(small(HYBRID, "cluster.node.power=6 kW", "cluster.node.price=36 USD/h"))
    text = describe(run)
    shown = rows(text)
    assert run.efficiency is not None
    assert text.startswith("small: hybrid on 6 ranks, predicted\n")
    assert list(shown) == [
        "framework", "throughput", "utilisation", "step time", "90 % interval", "limit", "where it goes", "bubble",
        "communication", "efficiency", "energy", "cost", "memory",
    ]  # fmt: skip
    assert shown["step time"][0].endswith("for 48 samples, 1.54 k tokens")
    assert re.match(r"[\d,]+ tokens/s, [\d.,]+ tokens/s/GPU, [\d.,]+ samples/s", shown["throughput"][0])
    assert shown["utilisation"][0].startswith(
        f"MFU {100 * (run.mfu or 0):.1f} %, HFU {100 * (run.hfu or 0):.1f} % of 1.00 TFLOP/s"
    )
    assert re.match(r"[\d.]+-[\d.]+ ms, [\d.,]+-[\d.,]+ samples/s", shown["90 % interval"][0])
    assert [row.split()[0] for row in shown["where it goes"]][:3] == ["compute", "exposed", "bubble"]
    assert "weak" in shown["efficiency"][0]
    assert re.fullmatch(rf"strong scaling {100 * run.efficiency['strong']:.1f} % \([\d.]+x of 1 GPU\)", shown["efficiency"][1])
    assert shown["energy"][0].endswith("per million tokens")
    assert "USD a step" in shown["cost"][0]
    assert len(text.splitlines()) < 30
    assert max(map(len, text.splitlines())) <= 117


def test_memory_is_shown_as_a_range_with_a_remedy_if_it_does_not_fit(small: Make) -> None:
    memory = rows(describe(predict(small(HYBRID))))["memory"]
    assert " of 8.00 GiB per GPU at stage " in memory[0]
    assert len(memory) == 2


def test_memory_that_does_not_suffice_is_the_headline(small: Make) -> None:
    scenario = small("strategy.workers=1", "cluster.device.memory=20 MB")
    text = describe(predict(scenario))
    need = re.match(r"Out of memory: ([\d.]+) of 19.1 MiB per GPU \(", text)
    assert need
    assert text.partition("\nsmall: ")[2].startswith("data_parallel on 1 rank, predicted as if memory sufficed\n")
    # it cannot be compared with sizes that fit
    assert "efficiency" not in rows(text)
    # a need of many times the memory is an error of the scenario, of which times say nothing
    far = describe(predict(small("strategy.workers=1", "cluster.device.memory=1 MB")))
    assert "throughput" not in far
    assert "step time" not in far


def test_a_remedy_is_shown_as_options(small: Make) -> None:
    run = replace(predict(small()), fits=False, fit_by="training.recompute={every: 2} training.zero=1", memory_bytes={"a": 9e9})
    assert out_of_memory(run).endswith("; fits with: --set 'training.recompute={every: 2}' --set training.zero=1")


def test_the_limit_names_the_largest_cause_and_what_helps(small: Make) -> None:
    run = predict(small())
    causes = {"exposed_communication": "Network-bound", "bubble": "Pipeline-bound", "waiting_for_server": "Server-bound"}
    for cause, words in causes.items():
        (text,) = limit(replace(run, step_time_s=1.0, breakdown_s={"compute": 0.4, cause: 0.6}))
        assert text.startswith("60.0 % ")
        assert f" {words}: " in text
    (text,) = limit(replace(run, step_time_s=1.0, breakdown_s={"compute": 0.99, "exposed_communication": 0.01}))
    assert text == "1.0 % exposed communication. Compute-bound: faster GPUs help, a faster network does not."


def test_small_kernels_are_bound_by_the_host(small: Make) -> None:
    """A block of 64 channels on a fast GPU computes for microseconds, and its kernels are launched one by one."""
    gpu = "cluster={base: dgx-h100, nodes: 1}", "training.precision=bf16", "strategy.workers=2"
    run = predict(small(*gpu, "framework=pytorch-ddp"))
    assert run.host_share is not None
    assert run.host_share > 0.8
    (text,) = limit(run)
    assert "Host-bound: larger microbatches, or fewer and larger kernels, help, faster GPUs do not. GPUs wait" in text
    assert bound(run) == "Host-bound"
    alone = predict(small(*gpu, "framework=ideal"))
    assert alone.host_share == 0
    assert bound(alone) == "Compute-bound"


@pytest.mark.parametrize(("share", "words"), [(0.64, "Host-bound: "), (0.3, "Compute-bound: "), (0.01, "Compute-bound: ")])
def test_updates_on_hosts_are_named_where_they_take_long(small: Make, share: float, words: str) -> None:
    run = replace(predict(small("training.offload=optimizer", "training.optimizer=adam")), host_share=0.0)
    (text,) = limit(replace(run, step_time_s=1.0, breakdown_s={"compute": 1.0}, host_update_share=share))
    assert words in text
    assert ("training.delay_update" in text) == (share >= 0.1)


def test_servers_are_shown_with_the_staleness_of_workers(small: Make) -> None:
    run = predict(small("strategy={kind: parameter_server, workers: 4, servers: 2}"))
    assert run.servers is not None
    assert rows(describe(run))["servers"][0].startswith(f"busiest: {run.servers.bottleneck}, ")
    assert len(rows(describe(run))["servers"]) == 1
    stale = replace(run.servers, version_staleness=Distribution(3.0, 2, 6, 7, {}), dropped=0.25)
    shown = rows(describe(replace(run, servers=stale)))["servers"]
    assert shown[1] == "version staleness 3 on average, 7 at most; 25.0 % of pushes dropped"


def test_unknown_quantities_are_omitted(small: Make) -> None:
    run = predict(small())
    bare = replace(
        run, tokens=None, model_flops=None, scaling={}, memory_bytes=None,
        prediction_interval_s=None,
    )  # fmt: skip
    assert list(rows(describe(bare))) == [
        "framework", "throughput", "step time", "limit", "where it goes", "communication",
    ]  # fmt: skip


def test_a_run_bound_by_its_input_is_reported_as_such(small: Make) -> None:
    run = predict(small("input={decode: 50 ms}"))
    assert "Input-bound: faster decoding, or more cores for it, helps most." in describe(run)
    assert "Input-bound: faster data loading helps most." in describe(replace(run, loading=None))


def test_a_measured_run_shows_its_interval_and_warnings(small: Make) -> None:
    run = predict(small())
    measured = replace(
        run, step_time_s=0.1, step_time_interval_s=(0.099, 0.103), fits=None, provenance={"warnings": "too loud\ntoo slow"}
    )

    shown = rows(describe(measured))

    assert shown["step time"][0].startswith("100 ms ± 2.00 ms (95 %) for ")
    assert shown["warning"] == ["too loud", "too slow"]
    assert not any("does not fit" in row for row in shown["memory"])
    assert "warning" not in rows(describe(run))
    assert "±" not in describe(run)


@pytest.mark.parametrize(
    ("compute", "on", "origin"),
    [("real", "local", "measured, on local"), ("paced", "netlab", "measured, paced, in netlab"), (None, None, "measured")],
)
def test_the_first_line_names_the_origin_and_the_kind_of_compute(
    small: Make, compute: Any, on: str | None, origin: str
) -> None:
    run = replace(predict(small()), origin="measured", compute=compute, provenance={"on": on} if on else {})

    assert describe(run).splitlines()[0] == f"small: data_parallel on {run.ranks} ranks, {origin}"


def test_an_emulated_network_is_described(small: Make) -> None:
    lab = {"link rate": "500 Mbit/s requested, 99.3% of it measured", "round trip": "17 us over TCP", "latency": "its own"}

    shown = rows(describe(replace(predict(small()), provenance=lab)))

    assert shown["network"] == [
        "links: 500 Mbit/s requested, 99.3% of it measured; round trip: 17 us over TCP; latency: its own"
    ]
