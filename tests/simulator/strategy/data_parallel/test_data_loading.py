"""A step takes the longer of training and loading, and the breakdown shows which."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.runs import describe
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]

STRATEGIES = (
    "{kind: data_parallel, workers: 8}",
    "{kind: parameter_server, workers: 8, servers: 2}",
    "{kind: pipeline, stages: 4, microbatches: 8}",
    "{kind: hybrid, workers: 4, stages: 2, microbatches: 4}",
)


def run(small: Make, strategy: str, *overrides: str) -> Run:
    return predict(small(f"strategy={strategy}", *overrides))


def decoding(seconds_a_batch: float, samples: int, prefetch: int = 1) -> str:
    """An input with the given loading time of a batch of the given size."""
    return f"input={{decode: {seconds_a_batch / samples!r} s, cores: 1, prefetch: {prefetch}}}"


def reading(seconds_a_step: float) -> str:
    """A file system with a given time for the 48 samples of a step."""
    return f"input={{storage: {{sample: 1 MB, bandwidth: {48e6 / seconds_a_step!r} B/s, shared_by: cluster}}}}"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_takes_the_longer_of_training_and_loading(small: Make, strategy: str) -> None:
    alone = run(small, strategy)
    for longer in (0.3, 0.999, 1.5, 4.0):
        loading_s = longer * alone.step_time_s
        fed = run(small, strategy, reading(loading_s))
        assert fed.step_time_s == pytest.approx(max(loading_s, alone.step_time_s), rel=1e-6)
        assert sum(fed.breakdown_s.values()) == pytest.approx(fed.step_time_s)
        assert ("Input-bound" in described(describe(fed))) == (longer > 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rates_of_loading_are_those_of_a_step_that_waits_for_it(small: Make, strategy: str) -> None:
    """Throughput is the least of the rates of storage and decoding, and of training without loading."""
    alone = run(small, strategy)
    for decode, storage_s in (("2 s", 1e-6), ("1 ns", 4 * alone.step_time_s), ("1 ns", 1e-6)):
        loaded = f"input={{decode: {decode}, cores: 4, storage: {reading(storage_s).partition('storage: ')[2]}"
        fed = run(small, strategy, loaded)
        rates = fed.loading
        assert rates is not None
        assert rates.storage_per_s is not None
        assert rates.decoding_per_s is not None
        assert rates.wanted_per_s == pytest.approx(alone.samples_per_s, rel=1e-6)
        least = min(rates.storage_per_s, rates.decoding_per_s, rates.wanted_per_s)
        assert fed.samples_per_s == pytest.approx(least, rel=1e-6)
        assert rates.wanted_cores == pytest.approx(4 * rates.wanted_per_s / rates.decoding_per_s)
    slow = run(small, strategy, "input={decode: 2 s, cores: 4}")
    text = " ".join(described(describe(slow)).split())
    assert "Input-bound: faster decoding, or more cores for it, helps most." in text
    assert re.search(r"input decoding [\d.,]+ samples/s; training without waiting [\d.,]+ samples/s, for which", text)
    assert re.search(r"for which decoding needs [\d,]+ cores a node", text)


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_waiting_for_input_is_a_separate_part(small: Make, strategy: str) -> None:
    alone = run(small, strategy)
    fed = run(small, strategy, reading(2 * alone.step_time_s))
    assert fed.breakdown_s["waiting_for_input"] == pytest.approx(alone.step_time_s)
    for cause, seconds in alone.breakdown_s.items():
        if cause != "waiting_for_input":
            assert fed.breakdown_s[cause] == pytest.approx(seconds, abs=1e-12)


def test_without_prefetching_training_waits_for_every_batch(small: Make) -> None:
    alone = run(small, "{kind: data_parallel, workers: 1}")
    for share in (0.5, 2.0):
        loading_s = share * alone.step_time_s
        fed = run(small, "{kind: data_parallel, workers: 1}", decoding(loading_s, 48, prefetch=0))
        assert fed.step_time_s == pytest.approx(alone.step_time_s + loading_s)


def test_reading_and_decoding_overlap(small: Make) -> None:
    strategy = "{kind: data_parallel, workers: 1}"
    for read_s, decode_s in ((0.02, 0.05), (0.05, 0.02)):
        parts = f"storage: {{sample: 1 MB, bandwidth: {48e6 / read_s!r} B/s}}, decode: {4 * decode_s / 48!r} s, cores: 4"
        assert run(small, strategy, f"input={{{parts}}}").step_time_s == pytest.approx(0.05)


def test_disks_of_nodes_add_up_and_a_shared_file_system_does_not(small: Make) -> None:
    """Eight workers on two nodes of four: each node's disk serves four of them, the file system eight."""
    strategy = "{kind: data_parallel, workers: 8}"
    by = {
        shared: run(small, strategy, f"input={{storage: {{sample: 1 MB, bandwidth: 100 MB/s, shared_by: {shared}}}}}")
        for shared in ("node", "cluster")
    }
    assert by["cluster"].step_time_s == pytest.approx(48e6 / 100e6)
    assert by["node"].step_time_s == pytest.approx(24e6 / 100e6)


def test_ranks_of_a_node_share_its_decoding_cores(small: Make) -> None:
    for workers, per_core in ((1, 48), (4, 48), (8, 24)):
        fed = run(small, f"{{kind: data_parallel, workers: {workers}}}", "input={decode: 10 ms, cores: 2}")
        assert fed.step_time_s == pytest.approx(0.01 * per_core / 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{cores: 4}", "input: input has no effect; give storage, decode or both, or leave input out"),
        ("{decode: 1 ms, cores: 0}", "input.cores: must be greater than 0"),
        ("{decode: 1 ms, prefetch: -1}", "input.prefetch: must be at least 0"),
        ("{storage: {bandwidth: 1 GB/s}}", "input.storage.sample: missing; add it"),
        ("{storage: {sample: 1 MB, bandwidth: 1 GB/s, shared_by: rack}}", "'rack' is not known; give 'node' or 'cluster'"),
        ("{storage: {speed: 1 GB/s}}", "input.storage.speed: unknown key"),
    ],
)
def test_impossible_values_are_rejected(small: Make, given: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(f"input={given}")
    assert message in str(caught.value)
