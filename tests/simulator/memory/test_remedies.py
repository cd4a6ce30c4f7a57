"""Remedies for scenarios that do not fit: they work, are valid, and are sorted by cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.remedies import fitting
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]

# layers whose activations are large and whose parameters are few, and the other way round
TALL = ("model={kind: mlp, layers: 8, inputs: 64, hidden: 64, outputs: 64}", "batch=65536")
NARROW, WIDE = (
    (
        f"model={{kind: mlp, layers: 8, inputs: {width}, hidden: {width}, outputs: {width}}}",
        "batch=4",
        "training.optimizer=adam",
    )
    for width in (512, 16384)
)
GPT = ("model={kind: gpt, layers: 8, hidden: 128, heads: 8, vocabulary: 64, sequence: 128, flash: false, dropout: true}",)


def fit_by(scenario: Scenario) -> str:
    return str(fitting(scenario) or "")


def reported(small: Make, *overrides: str, share: float = 1.0, less_bytes: float = 0.0) -> str:
    """Remedies that make the scenario fit in a share of the memory that it needs; they are checked."""
    room = f"cluster.device.memory={share * memory(small(*overrides)).worst.total_bytes - less_bytes:.0f} B"
    return checked(lambda *more: small(*overrides, room, *more))


def checked(load: Make) -> str:
    """Remedies of a scenario that does not fit. With these it fits, with the same batch and micro-batches that are not
    larger, on the same GPUs unless the remedies say on how many."""
    scenario = load()
    assert not memory(scenario).fits
    found = fit_by(scenario)
    if found:
        changed = load(*found.split())
        assert memory(changed).fits
        assert changed.total_samples == scenario.total_samples
        assert changed.samples_per_worker // changed.strategy.microbatches <= (
            scenario.samples_per_worker // scenario.strategy.microbatches
        )
        assert f"gpus={changed.strategy.training_ranks}" in found.split() or (
            "gpus=" not in found and changed.strategy.training_ranks == scenario.strategy.training_ranks
        )
    return found


def test_zero_stages_are_suggested_in_order(small: Make) -> None:
    def least_for(stage: int) -> str:
        room = memory(small(*WIDE, f"training.zero={stage}")).worst.total_bytes
        return fit_by(small(*WIDE, f"cluster.device.memory={room:.0f} B"))

    assert least_for(1) == "training.zero=1"
    assert least_for(2) == "training.zero=2"
    everything = "training={optimizer: adam, zero: 3, offload: [optimizer, parameters]}"
    room = memory(small(*WIDE, everything)).worst.total_bytes
    assert set(fit_by(small(*WIDE, f"cluster.device.memory={room:.0f} B")).split()) >= {
        "training.zero=3", "training.offload=[optimizer,parameters]",
    }  # fmt: skip


def test_smaller_microbatches_are_suggested_before_full_recomputation(small: Make) -> None:
    assert reported(small, *TALL, "strategy.workers=4", share=0.9) == "strategy.microbatches=2"
    assert reported(small, *TALL, "strategy.workers=4", share=0.4) == "strategy.microbatches=4"
    by_size = ("strategy.workers=4", "strategy.micro_batch_size=16384")
    assert reported(small, *TALL, *by_size, share=0.4) == "strategy.micro_batch_size=4096"


@pytest.mark.parametrize(
    ("strategy", "less"),
    [
        # what costs nothing, a little work again, then more ranks
        ("{kind: hybrid, tensor: 4}", "strategy.sequence_parallel=true"),
        ("{kind: hybrid, tensor: 4, sequence_parallel: true}", "training.recompute=selective"),
        ("{kind: hybrid, workers: 2, microbatches: 24}", "training.recompute=selective"),
    ],
)
def test_cheapest_remedies_are_suggested_first(small: Make, strategy: str, less: str) -> None:
    assert reported(small, *GPT, f"strategy={strategy}", less_bytes=1) == less


def test_larger_degrees_keep_the_gpus_the_batch_and_the_micro_batches(small: Make) -> None:
    base = (
        *GPT,
        "batch=8",
        "strategy={kind: hybrid, workers: 8, microbatches: 1}",
        "training={optimizer: adam, recompute: full}",
    )
    found = reported(small, *base, "training.zero=2", share=0.6)
    assert found == "strategy.tensor=2 strategy.workers=4 strategy.microbatches=2"
    by_size = "strategy={kind: hybrid, workers: 8, micro_batch_size: 1}"
    assert reported(small, *base, by_size, share=0.6) == "strategy.tensor=2 strategy.workers=4"


def test_a_batch_per_worker_becomes_the_global_batch_where_workers_change(small: Make) -> None:
    base = (*GPT, "strategy={kind: hybrid, workers: 8}", "training={optimizer: adam, recompute: full, zero: 2}")
    found = reported(small, *base, "batch.per_worker=1", share=0.6)
    assert found == "strategy.tensor=2 strategy.workers=4 strategy.microbatches=2 batch.total=8"


def test_suggested_tensor_parallel_ranks_stay_inside_a_node(small: Make) -> None:
    """Of four devices a node."""
    base = (*GPT, "batch=8", "strategy={kind: hybrid, workers: 8}", "training={optimizer: adam, recompute: full, zero: 2}")
    for share in (0.6, 0.3, 0.2, 0.1, 0.05):
        assert "strategy.tensor=8" not in reported(small, *base, share=share)


def test_more_gpus_are_suggested_where_one_worker_has_tried_everything_else(small: Make) -> None:
    base = (*GPT, "batch=1", "strategy={kind: hybrid}", "training={optimizer: adam, recompute: full, offload: [optimizer]}")
    assert reported(small, *base, share=0.6) == "strategy.tensor=2 gpus=2"
    pipeline = (*GPT, "batch=1", "strategy={kind: pipeline, stages: 2}", "training={recompute: full, offload: [optimizer]}")
    assert reported(small, *pipeline, share=0.7) == "strategy.stages=4 gpus=4"


def test_offloading_is_suggested_before_more_gpus(small: Make) -> None:
    base = (*GPT, "batch=1", "strategy={kind: hybrid}", "training={optimizer: adam, recompute: full}")
    assert reported(small, *base, share=0.7) == "training.offload=[optimizer]"


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("llama-3-70b", ("cluster=dgx-h100", "batch=512", "gpus=64")),
        ("llama-3-70b", ("cluster=dgx-h100", "batch=512", "strategy.workers=64")),
        ("llama-3-70b", ("cluster=dgx-h100", "batch.per_worker=8", "strategy.workers=16")),
        ("gpt3-175b-hybrid-selene", ()),
        ("megatron-175b-3d-selene", ("cluster.device.memory=20 GiB", "strategy.workers=8", "batch.per_worker=32")),
        ("mixtral-8x7b-experts-h100", ("cluster.device.memory=24 GiB",)),
        ("llama-3-8b-long-context-h100", ("cluster.device.memory=20 GiB",)),
    ],
)
def test_large_models_fit_by_remedies_on_the_same_gpus(name: str, overrides: tuple[str, ...]) -> None:
    found = checked(lambda *more: load(name, [*overrides, *more]))
    assert found
    assert "gpus=" not in found


@pytest.mark.parametrize("training", ["{optimizer: adam}", "{optimizer: adam, zero: 1}"])
@pytest.mark.parametrize("share", [0.8, 0.6, 0.5, 0.3, 0.2, 0.1, 0.01])
def test_suggested_remedies_make_the_scenario_fit(small: Make, training: str, share: float) -> None:
    reported(small, *TALL, "strategy={kind: pipeline, stages: 2, microbatches: 8}", f"training={training}", share=share)
    reported(
        small, *GPT, "strategy={kind: hybrid, workers: 2, stages: 2, microbatches: 4}", f"training={training}", share=share
    )


def test_no_suggested_strategy_field_is_redundant(small: Make) -> None:
    base = (*GPT, "strategy={kind: hybrid, stages: 2, microbatches: 2}", "training={optimizer: adam}")
    for share in (0.5, 0.4, 0.3, 0.2):
        for field in (one for one in reported(small, *base, share=share).split() if one.startswith("strategy.")):
            room = f"cluster.device.memory={share * memory(small(*base)).worst.total_bytes:.0f} B"
            others = [one for one in fit_by(small(*base, room)).split() if one != field]
            assert not memory(small(*base, room, *others)).fits


def test_no_remedy_is_suggested_if_none_helps(small: Make) -> None:
    run = predict(small("cluster.device.memory=1 kB"))
    assert (run.fits, run.fit_by) == (False, "")


def test_adapters_are_named_where_training_all_parameters_does_not_fit() -> None:
    fields = "cluster=rtx-4090", "batch=1", "model.sequence=512"
    run = predict(load("llama-3.1-8b", fields), interval=False)
    assert (run.fit_by, run.adapters_fit_by.split()[0]) == ("", "training.adapters=lora")
    assert memory(load("llama-3.1-8b", [*fields, *run.adapters_fit_by.split()])).fits
    larger = "training.recompute=full", "training.adapters=lora"
    assert fit_by(load("phi-4", [*fields, *larger])) == "training.base_precision=nf4"


def test_predictions_contain_the_remedy(small: Make) -> None:
    need = memory(small(*WIDE)).worst.total_bytes
    enough, short = (predict(small(*WIDE, f"cluster.device.memory={size:.0f} B")) for size in (need + 1, need - 1))
    assert (enough.fits, enough.fit_by) == (True, "")
    assert (short.fits, short.fit_by) == (False, "training.zero=1")


def test_stages_whose_buffers_need_more_than_they_save_are_not_suggested(small: Make) -> None:
    """DeepSpeed allocates buffers of half a billion elements for reductions with stages 1 and 2, whatever the model's size."""
    plain, one, two, three = (memory(small(*NARROW, f"training.zero={zero}")).worst.total_bytes for zero in range(4))
    assert three < plain < one < two
    assert reported(small, *NARROW, less_bytes=1) == "training.zero=3"


def test_embedding_tables_are_divided_before_anything_else() -> None:
    """Tables of 97 GiB and twice as many states do not fit into 8 devices of 80 GB each, but into all of them together."""

    def large(*overrides: str) -> Scenario:
        parts = ("cluster=dgx-h100", "cluster.nodes=1", "strategy.workers=8", "batch=65536")
        return load("dlrm-dcnv2", [*parts, *overrides])

    scenario = large()
    assert fit_by(scenario) == "strategy.tables={shard: column, optimizer: adam}"
    assert memory(large(fit_by(scenario))).fits


def test_embedding_tables_of_one_device_go_to_its_host() -> None:
    parts = ["cluster=dgx-h100", "cluster.nodes=1", "strategy.workers=1", "batch=65536"]
    found = fit_by(load("dlrm-dcnv2", parts))
    assert found == "strategy.tables={shard: table, on: host, optimizer: adam}"
    assert memory(load("dlrm-dcnv2", [*parts, found])).fits
