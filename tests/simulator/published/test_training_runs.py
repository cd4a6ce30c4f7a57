"""Published training runs as scenarios: printed scenarios give the same step time, and unknown cells are assumed."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, NotFoundError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.published.clusters import cluster_of
from scaleproof.simulator.published.runs import text_of
from scaleproof.simulator.published.tables import Cells, Row, find_row, read_table
from scaleproof.simulator.published.training_runs import RowScenario, row_scenario, software_of
from scaleproof.simulator.published.vision import vision_run
from scaleproof.simulator.scenario.framework_choice import software_prior
from scaleproof.simulator.scenario.load import load
from tests.validator.verdicts import in_bulk

_, ROWS = read_table(catalog.ROOT / "published" / "transformer_training.csv")
# Of each set the first, and every 25th row.
FIRSTS = {row["source_set"]: number for number, row in reversed([*enumerate(ROWS)])}
SAMPLE = sorted({*range(0, len(ROWS), 25), *FIRSTS.values()})
FEW = sorted(FIRSTS.values())


def described_or_none(row: Row) -> RowScenario | None:
    """The described row, or None if it lacks required cells."""
    try:
        return row_scenario(row)
    except InputError:
        return None


def differing(row: Row) -> str:
    """Differences between a row's scenario and its reloaded YAML, empty for none."""
    found = described_or_none(row)
    if found is None:
        with pytest.raises(InputError):
            text_of(f"published:{row['id']}")
        return ""
    again, scenario = load(f"published:{row['id']}"), found.scenario
    if timed(again).step_time_s != timed(scenario).step_time_s:
        return f"{row['id']}: {timed(again).step_time_s} s, not {timed(scenario).step_time_s} s"
    if again.framework != scenario.framework:
        return f"{row['id']}: trained by {again.framework.name}, not {scenario.framework.name}"
    return ""


@pytest.mark.parametrize(
    "number", [*FEW, *in_bulk(*(number for number in SAMPLE if number not in FEW))], ids=lambda number: ROWS[number]["id"]
)
def test_printed_scenarios_give_the_same_step_time(number: int) -> None:
    assert differing(ROWS[number]) == ""


def changed(row: Row, **cells: str) -> Cells:
    """The row with other cells."""
    return Cells({**row, **cells})


def a_row() -> Row:
    """A row without blank cells."""
    return next(row for row in ROWS if row["source_set"] == "korthikanti22")


def test_unknown_software_is_assumed_to_be_the_default_framework() -> None:
    row = changed(a_row(), software="Trainer of our own", recompute="none", precision="bf16")
    assert software_of(row) is None
    found = row_scenario(row)
    assert "software" in found.assumed
    assert found.scenario.framework_is_default
    assert found.scenario.software == "Trainer of our own"
    prior = software_prior(found.scenario)
    assert prior is not None
    assert found.scenario.framework.name == prior.middle
    assert row_scenario(changed(row, software=""), named=False).scenario.framework.name == "megatron-core-0.12"
    known = row_scenario(changed(a_row()))
    assert "software" not in known.assumed
    assert (known.scenario.framework.name, known.scenario.framework_is_default) == ("megatron-lm-2022", False)


def test_each_row_with_known_software_names_its_framework() -> None:
    for number in SAMPLE:
        found, software = described_or_none(ROWS[number]), software_of(ROWS[number])
        if found is not None and software is not None:
            assert found.scenario.framework.name == software["framework"]
            assert not found.scenario.framework_is_default


def test_an_unknown_cluster_takes_the_bandwidth_of_its_note() -> None:
    row = changed(
        a_row(), cluster="our-cluster", gpu="A100-80GB-SXM", gpus="32", gpus_per_node="4", note="4 x 50 Gbit/s InfiniBand"
    )
    cluster, assumed = cluster_of(row)
    assert cluster.network is not None
    assert cluster.network.bandwidth_Bps == 4 * 50e9 / 8
    assert (cluster.name, cluster.node.devices) == ("our-cluster", 4)
    assert cluster.nodes >= 8
    assert assumed == ("cluster",)


def test_an_unknown_cluster_takes_the_usual_network_of_its_gpu() -> None:
    cluster, assumed = cluster_of(changed(a_row(), cluster="", gpu="H100-80GB-SXM", gpus="64", gpus_per_node="", note=""))
    assert cluster.name == "dgx-h100"
    assert cluster.nodes >= 8
    assert assumed == ("cluster", "network")
    with pytest.raises(InputError, match="unknown cluster and GPU: ours, TPU-v9"):
        cluster_of(changed(a_row(), cluster="ours", gpu="TPU-v9"))


@pytest.mark.parametrize(
    ("gpu", "device", "devices", "memory_GiB"),
    [
        ("A10", "A10-24GB", 2, 24),  # not the A100
        ("A800-80GB-SXM", "A800-80GB-SXM", 8, 80),  # nodes of another GPU of its generation
        ("H100-64GB (custom)", "H100-64GB (custom)", 8, 64),
        ("TPUv3", "TPU-v3", 4096, 32),
    ],
)
def test_a_gpu_without_nodes_of_its_own_takes_those_of_another(gpu: str, device: str, devices: int, memory_GiB: int) -> None:
    cluster, assumed = cluster_of(changed(a_row(), cluster="ours", gpu=gpu, gpus="2", gpus_per_node="", note=""))
    assert (cluster.name, cluster.device.name, cluster.node.devices) == ("ours", device, devices)
    assert cluster.device.memory_bytes == pytest.approx(memory_GiB * 2**30, rel=0.08)
    assert assumed == ("cluster", "network")


def test_groups_that_share_states_are_read_from_the_note() -> None:
    row = changed(
        a_row(), zero_stage="3", tp="1", pp="1", dp="8", software="PyTorch FSDP1", note="full shard over the node of 4"
    )
    found = row_scenario(
        changed(row, sequence_parallel="no", gpus="8", recompute="none", global_batch_seqs="8", microbatch_seqs="1")
    )
    assert found.scenario.strategy.plan.shard_over == 4


def test_a_framework_says_what_runs_do_that_do_not_state_recomputation() -> None:
    found = row_scenario(changed(a_row(), software="MaxText (JAX 0.6)", recompute="", sequence_parallel="no"))
    assert (found.scenario.framework.name, found.scenario.training.recompute.kind) == ("jax-maxtext", "full")
    assert "recompute" in found.assumed


def test_blank_cells_are_assumed() -> None:
    found = row_scenario(changed(a_row(), recompute="", optimizer="?", microbatch_seqs=""))
    assert {"recompute", "optimizer", "microbatch_seqs"} <= set(found.assumed)
    assert found.scenario.training.optimizer == "adam"
    assert found.scenario.training.recompute.kind == "none"


def test_rows_without_a_valid_run_are_rejected() -> None:
    for cells in ({"layers": ""}, {"dp": "many"}, {"global_batch_seqs": "5", "dp": "2"}, {"precision": "int4"}):
        with pytest.raises(InputError):
            row_scenario(changed(a_row(), **cells))


@pytest.mark.parametrize(("number", "hint"), [("korthikanti22-001", "did you mean korthikanti22-00"), ("?", "ids are in ")])
def test_an_unknown_row_id_gives_an_error(number: str, hint: str) -> None:
    with pytest.raises(NotFoundError, match=f"no published training run has the id .*; {hint}"):
        load(f"published:{number}")
    with pytest.raises(NotFoundError):
        find_row(f"published:{number}")


def test_overrides_change_the_printed_scenario() -> None:
    number = a_row()["id"]
    plain, faster = load(f"published:{number}"), load(f"published:{number}", ["framework=ideal"])
    assert timed(faster).step_time_s < timed(plain).step_time_s
    assert text_of(f"published:{number}").startswith("# 22B on 8 A100-80GB-SXM, Megatron-LM 2022")


def a_mixture(**cells: str) -> Row:
    return changed(next(row for row in ROWS if row["source_set"] == "moe_recipes" and row["gpu"] == "GB200"), **cells)


def test_mixtures_have_what_notes_say_of_their_experts() -> None:
    """64 experts' ranks of which two share the rest: 16 workers of two, if each expert is whole."""
    folded = {"tp": "2", "dp": "32", "gpus": "64", "ep": "64", "sequence_parallel": "yes"}
    found = row_scenario(a_mixture(**folded, global_batch_seqs="512")).scenario
    assert (found.strategy.plan.expert, found.strategy.plan.expert_tensor) == (64, 1)
    assert getattr(found.model, "experts").imbalance == 1.0  # noqa: B009 (of transformers)
    free = row_scenario(a_mixture(note="")).scenario
    assert getattr(free.model, "experts").imbalance == "auxiliary_loss"  # noqa: B009
    recomputed = row_scenario(a_mixture(recompute="selective", note="recomputes moe_act and layernorm")).scenario
    assert recomputed.training.recompute.modules == ("layernorm", "moe_act")


def test_a_mixture_that_ships_has_what_the_table_has_no_columns_for() -> None:
    sizes = {"hidden": "7168", "heads": "128", "kv_heads": "128", "ffn_hidden": "18432", "vocab": "129280"}
    experts = {"experts": "256", "experts_per_token": "8", "expert_ffn_hidden": "2048", "shared_experts": "1"}
    row = a_mixture(model="DeepSeek-V3", layers="30", moe_layers="28", **sizes, **experts)
    model = row_scenario(row).scenario.model.model_dump()
    assert model["latent"]["key_rank"] == 512
    assert (model["layers"], model["experts"]["dense_layers"], model["experts"]["groups"]) == (30, 2, 8)
    other = row_scenario(changed(row, hidden="4096", heads="32", kv_heads="32")).scenario.model.model_dump()
    assert other["latent"] is None


@pytest.mark.parametrize(
    ("words", "framework", "dispatcher", "overlaps"),
    [
        ("BF16 baseline", "megatron-core-2026", "hybridep", False),
        ("MXFP8; partial CG; DeepEP", "megatron-core-2026-graphs", "deepep", False),
        ("MXFP8; paged stash; full CG; EP overlap", "megatron-core-2026-full-graphs", "hybridep", True),
    ],
)
def test_words_of_software_state_dispatchers_and_overlap(words: str, framework: str, dispatcher: str, overlaps: bool) -> None:
    found = row_scenario(a_mixture(software=f"Megatron-Core dev 2026-07, {words}")).scenario
    plan = found.strategy.plan
    assert (found.framework.name, plan.dispatcher, plan.overlap_experts) == (framework, dispatcher, overlaps)


def test_nvlink_domains_of_several_machines_are_kept_whole() -> None:
    """Sources give the four GPUs of a tray; a job of 2,048 has room for 64 of 72 on each of 32 domains."""
    for name in ("gb200-nvl72", "ours"):
        cluster, _ = cluster_of(a_mixture(cluster=name, gpus="2048", gpus_per_node="4", note=""))
        assert cluster.node.devices == 72
        assert cluster.nodes == 32
    recipe = row_scenario(a_mixture(gpus="2048", dp="64", pp="32", ep="64", global_batch_seqs="2048", microbatch_seqs="1"))
    assert (recipe.scenario.cluster.node.devices, recipe.nodes) == (64, 32)


def test_a_run_that_ran_recomputes_what_it_must_to_fit() -> None:
    """A GPT of NeMo Megatron in 2023, which recomputes nothing by default, and has scores in memory."""
    row = changed(
        a_row(), software="NeMo Megatron 23.05", layers="24", hidden="4096", heads="32", kv_heads="", ffn_hidden="", dp="8",
        tp="1", pp="1", virtual_stages="1", zero_stage="1", sequence_parallel="no", global_batch_seqs="64", recompute="",
    )  # fmt: skip
    ways = {
        (size, fits): row_scenario(changed(row, microbatch_seqs=size, fits=fits)).scenario.training.recompute.kind
        for size, fits in (("1", "yes"), ("4", "yes"), ("4", "no"))
    }
    assert list(ways.values()) == ["none", "selective", "none"]
    stated = row_scenario(changed(row, microbatch_seqs="4", recompute="none"))
    assert stated.scenario.training.recompute.kind == "none"


def test_what_a_row_does_not_state_may_make_it_slower() -> None:
    row = changed(a_row(), cluster="", gpu="A100-80GB-SXM", gpus="16", gpus_per_node="", note="", recompute="full")
    row = changed(row, dp="16", tp="1", pp="1", virtual_stages="1", sequence_parallel="no", global_batch_seqs="64")
    row = changed(row, layers="4", hidden="2048", heads="16", kv_heads="", ffn_hidden="", microbatch_seqs="")
    found = row_scenario(row)
    assert found.slower is not None
    assert found.slower.strategy.plan.microbatches == 4 > found.scenario.strategy.plan.microbatches
    assert (network := found.slower.cluster.network) is not None
    assert network.state == "untuned"
    assert timed(found.slower).step_time_s > timed(found.scenario).step_time_s
    assert row_scenario(changed(row, cluster="selene-a100", microbatch_seqs="1")).slower is None


@pytest.mark.parametrize("number", ["vis-0034", "vis-0051", "vis-0764"])
def test_rows_of_vision_models_are_scenarios_by_their_ids(number: str) -> None:
    reference = f"published:{number}"
    assert timed(load(reference)).step_time_s == timed(vision_run(find_row(reference)).scenario).step_time_s
