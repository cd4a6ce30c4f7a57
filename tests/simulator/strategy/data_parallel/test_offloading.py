"""What offloading costs: bytes over the links between devices and hosts, updates on hosts, and what hides behind passes."""

from __future__ import annotations

import pytest

from scaleproof.simulator.cluster.host import ADAM_BYTES
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.engine import simulate_steady
from scaleproof.simulator.engine.events import simulate
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.run.bottleneck import limit
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import program_of
from tests.simulator.frameworks.scenarios import scenario
from tests.simulator.programs import FREES_ENDS, ends_bytes

RATE, LINK = 4e9, 25e9
HOST = f"cluster.node.host={{memory: 2 TB, link: 25 GB/s, adam_rate: {RATE}}}"
SEVEN = ("model=llama-2-7b", "cluster=dgx-a100", "cluster.node.memory_bandwidth=10 TB/s", HOST, "training.recompute=full")
OPTIMIZER, BOTH = "training.offload=[optimizer]", "training.offload=[optimizer, parameters]"


def seven(*overrides: str, framework: str = "ideal") -> Scenario:
    return scenario(*SEVEN, f"framework={framework}", "batch=64", *overrides)


def copied(run: Run, direction: str) -> tuple[float, float]:
    """Bytes and seconds of copies of a rank in one direction."""
    (part,) = [one for one in run.communication if one.dimension == direction]
    return part.size_bytes, part.time_s


def test_a_7b_model_is_updated_on_the_host() -> None:
    without, offloaded = (timed(seven("training.zero=2", *more)) for more in ((), (OPTIMIZER,)))
    parameters = seven().model.parameters()
    share_bytes = 2 * parameters / 8
    # gradients of the rank's part go, and parameters come back
    assert copied(offloaded, "to host") == pytest.approx((share_bytes, share_bytes / LINK), rel=1e-6)
    assert copied(offloaded, "from host") == pytest.approx((share_bytes, share_bytes / LINK), rel=1e-6)
    assert offloaded.step_time_s > max(share_bytes / LINK, parameters / RATE)
    # gradients are hidden by the backward pass but for the last bucket
    on_device_s = ADAM_BYTES * parameters / 8 / seven().cluster.device.memory_bandwidth_Bps
    added_s = offloaded.step_time_s - without.step_time_s + on_device_s
    assert added_s == pytest.approx(parameters / RATE + share_bytes / LINK, rel=0.02)
    assert offloaded.phase_s["optimizer"] == pytest.approx(parameters / RATE, rel=0.02)


def test_a_delayed_update_overlaps_with_the_next_step() -> None:
    without = timed(seven("training.zero=2"))
    delayed = timed(seven("training.zero=2", OPTIMIZER, "training.delay_update=true"))
    assert delayed.step_time_s == pytest.approx(without.step_time_s, rel=0.02)
    slow = f"cluster.node.host.adam_rate={RATE / 20}"
    slowed = timed(seven("training.zero=2", OPTIMIZER, "training.delay_update=true", slow))
    assert slowed.step_time_s == pytest.approx(20 * seven().model.parameters() / RATE, rel=0.02)


def test_fsdp_copies_parameters_before_each_pass() -> None:
    given = ("training.zero=3", "strategy.microbatches=2", BOTH)
    run, keeping = (timed(seven(*given, *more, framework="pytorch-fsdp2")) for more in ((FREES_ENDS,), ()))
    shard_bytes = 4 * seven().model.parameters() / 8
    # 32-bit shards before two passes of each microbatch, and 32-bit gradients of each
    assert copied(run, "from host")[0] == pytest.approx(2 * 2 * shard_bytes, rel=1e-6)
    assert copied(run, "to host")[0] == pytest.approx(2 * shard_bytes, rel=1e-6)
    # those of its root, embedding and head, stay between both passes
    again_bytes = 2 * shard_bytes - ends_bytes(seven()) / 8 * 2
    assert copied(keeping, "from host")[0] == pytest.approx(2 * shard_bytes + again_bytes, rel=1e-6)
    kept = timed(seven(*given, "strategy.reshard=false", framework="pytorch-fsdp2"))
    assert copied(kept, "from host")[0] == pytest.approx(2 * shard_bytes, rel=1e-6)
    slow = timed(seven(*given, "cluster.node.host.link=1 GB/s", framework="pytorch-fsdp2"))
    assert slow.step_time_s == pytest.approx((2 * shard_bytes + again_bytes) / 1e9 + slow.phase_s["optimizer"], rel=0.06)


def test_one_gpu_needs_no_collectives_to_offload() -> None:
    alone = ("strategy.workers=1", "batch=8", "training.zero=3", BOTH)
    run = timed(seven(*alone))
    parameters = seven().model.parameters()
    assert copied(run, "from host")[0] == pytest.approx(2 * 2 * parameters, rel=1e-6)
    assert copied(run, "to host")[0] == pytest.approx(2 * parameters, rel=1e-6)
    assert {one.dimension for one in run.communication} == {"from host", "to host"}
    whole = memory(seven(*alone)).worst.holders_bytes
    assert whole["parameters"] == whole["master_parameters"] == whole["optimizer_states"] == whole["gradients"] == 0
    assert 0 < whole["communication"] < 0.2 * 2 * parameters


def test_gpus_behind_one_link_share_it() -> None:
    alone, shared = (
        timed(seven("training.zero=2", OPTIMIZER, f"cluster.node.host.devices_per_link={count}")) for count in (1, 2)
    )
    assert copied(shared, "from host")[1] == pytest.approx(2 * copied(alone, "from host")[1], rel=1e-6)


def test_the_memory_of_a_host_limits_all_copies_and_updates() -> None:
    narrow = "cluster.node.memory_bandwidth=40 GB/s"
    run = timed(seven("training.zero=2", OPTIMIZER, narrow, f"cluster.node.host.adam_rate={RATE}"))
    # eight copies share 40 GB/s
    assert copied(run, "from host")[1] == pytest.approx(2 * seven().model.parameters() / 40e9, rel=0.01)


def test_activations_go_to_the_host_and_return() -> None:
    given = ("training.zero=3", "training.recompute=none")
    kept, sent = (memory(seven(*given, *more)).worst for more in ((), ("training.offload=[activations]",)))
    run = timed(seven(*given, "training.offload=[activations]", "cluster.node.host.link=5 GB/s"))
    assert copied(run, "to host")[0] == copied(run, "from host")[0] == pytest.approx(sent.host_bytes, rel=0.01)
    # two of 32 blocks are on the device at a time
    less_bytes = kept.holders_bytes["activations"] - sent.holders_bytes["activations"]
    assert less_bytes == pytest.approx(sent.host_bytes * 30 / 32, rel=0.15)
    assert run.step_time_s == pytest.approx(2 * sent.host_bytes / 5e9, rel=0.1)
    fast = timed(seven(*given, "training.offload=[activations]", "cluster.node.host.link=500 GB/s"))
    assert fast.step_time_s == pytest.approx(timed(seven(*given)).step_time_s, rel=0.02)


def test_drives_are_as_fast_as_states_are_read_and_written() -> None:
    drives = "cluster.node.host.nvme={read: 6 GB/s, write: 4 GB/s, capacity: 1 TB}"
    run = timed(seven("training.zero=2", OPTIMIZER, "training.offload_to=nvme", drives))
    # master copies and two moments of 32 bits
    assert run.phase_s["optimizer"] == pytest.approx(12 * seven().model.parameters() / 4e9, rel=0.02)
    use = memory(seven("training.zero=2", OPTIMIZER, "training.offload_to=nvme", drives)).host
    assert use is not None
    assert (use.place, use.capacity_bytes) == ("drives", 1e12)


def test_replay_and_events_agree_on_copies() -> None:
    program = program_of(scenario("training.zero=3", "training.offload=[optimizer, parameters, activations]"))
    by_events = simulate(program, 3).step_ends_s()
    assert simulate_steady(program, 3).step_ends_s() == pytest.approx(by_events, rel=1e-9)


@pytest.mark.parametrize("strategy", ["{kind: local_sgd, workers: 8, period: 2}", "{kind: gather_average, workers: 8}"])
def test_other_strategies_update_on_hosts_after_their_passes(strategy: str) -> None:
    job = ("cluster.node.host.adam_rate=1e9", f"strategy={strategy}")
    without, offloaded = (timed(scenario(*job, *more)) for more in ((), (OPTIMIZER,)))
    assert offloaded.step_time_s > without.step_time_s + scenario().model.parameters() / 1e9


def test_what_is_assumed_is_said_and_widens_the_interval() -> None:
    assumed, given = scenario("training.zero=2", OPTIMIZER, "cluster.node.host={}"), seven("training.zero=2", OPTIMIZER)
    run, known = predict(assumed, remedy=False), predict(given, remedy=False)
    assert "50 GB/s between a device and its host (cluster.node.host.link) and Adam of 7.68 billion" in "".join(run.warnings)
    assert "which was not checked; give cluster.node.host.memory" in "".join(run.warnings)
    assert not any("offload" in one for one in known.warnings)
    assert run.spread["node.host.adam_rate"] > known.spread.get("node.host.adam_rate", 0.0)


def test_hosts_without_room_are_named() -> None:
    run = predict(seven("training.zero=2", OPTIMIZER, "cluster.node.host.memory=64 GiB"), interval=False, remedy=False)
    assert run.fits is False
    assert "needs 87.9 GiB of a node's host memory, which has 64.0 GiB (cluster.node.host.memory)" in run.host_problem


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("strategy={kind: parameter_server, workers: 8}", OPTIMIZER),
            "training.offload: hosts have the states of a parameter_server; leave offload out",
        ),
        (("training.zero=2", OPTIMIZER, "training.offload_to=nvme"), "cluster.node.host.nvme: missing for training.offload_to"),
        (
            ("training.offload_to=nvme",),
            "training.offload_to: the optimizer is not offloaded; set training.offload=[optimizer]",
        ),
        (("training.delay_update=true",), "training.delay_update: the optimizer is not offloaded"),
        (("training.optimizer=muon", OPTIMIZER), "training.offload: muon's products on hosts are not modelled; give adam"),
        (
            ("strategy={kind: local_sgd, workers: 8, period: 2}", "training.offload=[activations]"),
            "training.offload: activations are not offloaded by the strategy local_sgd",
        ),
        (
            (
                "strategy={kind: hybrid, workers: 2, stages: 4, microbatches: 4, schedule: zb_h1}",
                "training.offload=[activations]",
            ),
            "activations are not offloaded with the schedule zb_h1; leave them out, or give 1f1b",
        ),
    ],
)
def test_what_cannot_be_offloaded_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(*overrides)
    assert message in str(error.value)


def test_updates_on_hosts_that_take_most_of_a_step_limit_it() -> None:
    small_batch, large_batch = (
        " ".join(limit(timed(seven("training.zero=2", OPTIMIZER, f"batch={batch}")))) for batch in (8, 64)
    )
    assert "% updates on hosts. Host-bound: faster memory of hosts, training.delay_update or less" in small_batch
    assert "Compute-bound" in large_batch
    assert "% updates on hosts: faster memory" in large_batch
