"""Scenarios of named training systems: they predict, and state what they omit."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common import catalog
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from tests.validator.verdicts import in_bulk

SYSTEMS = catalog.names("systems")
KNOWN = (
    "a3c", "accelerate", "alibaba-hybrid", "byteps", "deepspeed-zero-1", "deepspeed-zero-2", "deepspeed-zero-3", "elastic",
    "horovod", "horovod-hierarchical", "lightning", "megatron-lm", "parallel-trials", "pytorch-ddp", "pytorch-fsdp",
    "pytorch-pipelining", "spark-averaging", "tensorflow-mirrored", "tensorflow-multi-worker", "tensorflow-parameter-server",
)  # fmt: skip


def test_all_required_systems_ship() -> None:
    assert set(KNOWN) <= set(SYSTEMS)


@pytest.mark.parametrize("name", [*SYSTEMS[::2], *in_bulk(*SYSTEMS[1::2])])
def test_each_system_predicts_and_fits_in_memory(name: str) -> None:
    run = predict(load(name), interval=False)
    assert 0 < run.samples_per_s < float("inf")
    assert run.fits


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_states_what_it_models_and_omits(name: str) -> None:
    text = (catalog.ROOT / "systems" / f"{name}.yaml").read_text()
    assert "\n# Models: " in text
    assert "\n# Leaves out: " in text
    assert catalog.summary("systems", name).endswith("?")
    assert len([line for line in text.splitlines() if not line.startswith("#")]) <= 20


def test_scenario_defaults_equal_the_systems_defaults() -> None:
    """Of PyTorch arXiv 2006.15704 and its documentation; of Horovod the notes of release 0.21."""
    assert load("pytorch-ddp").strategy == load("pytorch-ddp", ["strategy={kind: data_parallel, workers: 32}"]).strategy
    assert load("horovod").strategy.plan.bucket_bytes == 128 * 2**20


def test_trials_scale_perfectly_and_one_trial_on_all_devices_does_not() -> None:
    def run(*fields: str) -> Run:
        """On devices that are equally fast."""
        return predict(load("parallel-trials", ["framework=ideal", *fields]), interval=False)

    alone, trials, together = run("strategy.workers=1"), run(), run("strategy={kind: data_parallel, workers: 32}")
    assert trials.samples_per_s == pytest.approx(32 * alone.samples_per_s, rel=1e-3)
    assert together.samples_per_s < trials.samples_per_s
