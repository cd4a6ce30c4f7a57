"""A step takes the longer of training and loading, and the breakdown shows which."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.runs import describe
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.prediction.loading import readers
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Storage

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
        nodes = len({one.node for one in readers(small(f"strategy={strategy}"))})
        assert rates.needed_per_s * nodes == pytest.approx(alone.samples_per_s, rel=1e-6)
        assert {one.name for one in rates.parts} == {"storage", "decoding"}
        assert [one.per_s for one in rates.parts] == sorted(one.per_s for one in rates.parts)
        least = min(rates.parts[0].per_s, rates.needed_per_s) * nodes
        assert fed.samples_per_s == pytest.approx(least, rel=1e-6)
        for part in rates.parts:
            assert bool(part.cure) == (part.per_s < rates.needed_per_s)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_proposed_settings_remove_the_wait_and_little_less_does_not(small: Make, strategy: str) -> None:
    alone = run(small, strategy)
    given = f"input={{decode: 2 s, cores: 4, storage: {reading(4 * alone.step_time_s).partition('storage: ')[2]}"
    slow = run(small, strategy, given)
    assert slow.loading is not None
    cures = [part.cure for part in slow.loading.parts]
    assert {cure.partition("=")[0] for cure in cures} == {"input.cores", "input.storage.bandwidth"}
    assert run(small, strategy, given, *cures).step_time_s == pytest.approx(alone.step_time_s, rel=1e-6)
    for cure in cures:
        assert run(small, strategy, given, cure).breakdown_s["waiting_for_input"] > 0
    (cores,) = (int(cure.partition("=")[2]) for cure in cures if "cores" in cure)
    fewer = run(small, strategy, given, *cures, f"input.cores={cores - 1}")
    assert fewer.step_time_s > alone.step_time_s * (1 + 1e-6)
    text = " ".join(described(describe(slow)).split())
    assert "Input-bound: faster decoding, or more cores for it, helps most." in text
    needed = r"[\d.,]+ samples/s a node of [\d.,]+ needed \(input.cores=\d+ would do\); storage [\d.,]+ \(input.storage"
    assert re.search(f"input limited by decoding: {needed}", text)


PARTS = {
    "decoding and augmentation": "{decode: 1 s, augment: 1 s, cores: 3}",
    "augmentation": "{decode: 1 us, decode_on: device, augment: 2 s, cores: 3}",
    "decoding on devices": "{decode: 1 s, decode_on: device}",
    "transfer": "{decode: 1 us, copied: 1 TB}",
    "reads in flight": "{storage: {sample: 1 MB, bandwidth: 1 TB/s, latency: 1 s, in_flight: 2}}",
    "storage": "{storage: {sample: 1 MB, bandwidth: 1 MB/s, latency: 1 us, read: 8 MB, shared_by: cluster}}",
}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_limits_and_is_cured(small: Make, name: str) -> None:
    strategy = "{kind: data_parallel, workers: 8}"
    alone, slow = run(small, strategy), run(small, strategy, f"input={PARTS[name]}")
    assert slow.loading is not None
    assert slow.loading.parts[0].name == name
    nodes = len({one.node for one in readers(small(f"strategy={strategy}"))})
    assert slow.samples_per_s == pytest.approx(slow.loading.parts[0].per_s * nodes, rel=1e-6)
    cures = [part.cure for part in slow.loading.parts if part.cure]
    assert run(small, strategy, f"input={PARTS[name]}", *cures).step_time_s == pytest.approx(alone.step_time_s, rel=1e-6)


@pytest.mark.parametrize("name", catalog.names("inputs"))
def test_shipped_inputs_load_and_say_what_they_are(small: Make, name: str) -> None:
    scenario = small("strategy={kind: data_parallel, workers: 8}", f"input={{base: {name}, cores: 4}}")
    assert scenario.input is not None
    assert scenario.input.description
    rates = predict(scenario).loading
    assert rates is not None
    assert {"storage"} < {part.name for part in rates.parts}


def test_reads_in_flight_obey_littles_law() -> None:
    """One read of 1 MB at a time takes 10 ms of latency and 1 ms of transfer; 100 in flight fill the bandwidth."""
    for in_flight, rate in ((1, 1e6 / 11e-3), (2, 2e6 / 11e-3), (100, 100e6 / 11e-3)):
        given = {"sample": "1 MB", "bandwidth": "1 GB/s", "latency": "10 ms", "in_flight": in_flight}
        assert Storage.model_validate(given).read_Bps == pytest.approx(rate)
    larger = Storage.model_validate({"sample": "1 kB", "bandwidth": "1 GB/s", "latency": "10 ms", "read": "1 MB"})
    assert larger.read_Bps == pytest.approx(1e6 / 11e-3)


def cached(share: float, nodes: int) -> float:
    given = {"sample": "1 kB", "bandwidth": "1 GB/s", "dataset": "1 GB", "page_cache": f"{share} GB"}
    return Storage.model_validate(given).cached_share(nodes)


def test_a_page_cache_with_random_evictions_finds_less_than_it_has() -> None:
    """Against draws of a cache that evicts a random page at each miss, and its limits."""
    draws, pages, room = np.random.default_rng(1), 2000, 1300
    kept, found = list(range(room)), 0
    place = {page: page for page in kept}
    for epoch in range(12):
        for page in draws.permutation(pages).tolist():
            if page in place:
                found += epoch >= 4
                continue
            slot = int(draws.integers(room))
            del place[kept[slot]]
            kept[slot], place[page] = page, slot
    assert cached(0.65, 1) == pytest.approx(found / (8 * pages), abs=0.02)
    assert cached(0.65, 10_000) == pytest.approx(0.65, abs=1e-3)
    assert cached(1.5, 4) == 1.0
    shares = [cached(0.65, nodes) for nodes in (1, 2, 8, 64)]
    assert shares == sorted(shares)


def test_a_data_set_in_the_page_cache_needs_no_storage(small: Make) -> None:
    storage = "{sample: 1 MB, bandwidth: 1 B/s, dataset: 1 GB, page_cache: 2 GB}"
    fed = run(small, "{kind: data_parallel, workers: 8}", f"input={{storage: {storage}, decode: 1 us}}")
    assert fed.loading is not None
    assert [part.name for part in fed.loading.parts] == ["decoding"]


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
        ("{storage: {sample: 1 MB, bandwidth: 1 GB/s, in_flight: 4}}", "read and in_flight have no effect without latency"),
        ("{storage: {sample: 1 MB, bandwidth: 1 GB/s, page_cache: 4 GB}}", "give dataset and page_cache, or neither"),
        ("{augment: 1 ms, decode_on: device}", "decode_on: device has no effect; give decode"),
        ("{storage: {speed: 1 GB/s}}", "input.storage.speed: unknown key"),
    ],
)
def test_impossible_values_are_rejected(small: Make, given: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(f"input={given}")
    assert message in str(caught.value)


def test_cores_parse_what_devices_decode(small: Make) -> None:
    """Cores of each of two nodes parse 24 samples a step, each device decodes six of them."""
    mixed = "decode: 10 ms, decode_on: device"
    alone, parsed = (run(small, STRATEGIES[0], f"input={{{mixed}{more}}}") for more in ("", ", parse: 40 ms, cores: 4"))
    assert alone.step_time_s == pytest.approx(6 * 0.01, rel=1e-6)
    assert parsed.step_time_s == pytest.approx(24 * 0.04 / 4, rel=1e-6)
    assert "limited by parsing" in described(describe(parsed))
    with pytest.raises(ScenarioError, match="parse: on cores, decode is all of decoding"):
        small("input={decode: 10 ms, parse: 1 ms}")


def test_decoding_by_kernels_is_in_the_interval(small: Make) -> None:
    """A V100 decodes JPEG by kernels, which slow training by at most their time; an A100 has an engine."""
    notes = {
        device: predict(small("input={decode: 1 ms, decode_on: device}", f"cluster.device={device}")).warnings
        for device in ("v100-16gb-sxm2", "a100-80gb-sxm")
    }
    assert [any("has no engine for JPEG" in note for note in found) for found in notes.values()] == [True, False]
