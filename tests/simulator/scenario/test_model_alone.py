"""A scenario that is given by its model alone, around which overrides put the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.scenario.load import load

AROUND = ("cluster=dgx-h100", "gbs=512")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_a_model_with_cluster_and_batch_is_a_scenario_in_bf16(config: Path) -> None:
    scenario = load(f"hf:{config}", [*AROUND, "tp=8", "pp=4", "gpus=64"])
    assert (scenario.training.precision, scenario.training.optimizer) == ("bf16", "adam")
    assert (scenario.strategy.training_ranks, scenario.strategy.workers, scenario.total_samples) == (64, 2, 512)
    shipped = load("llama-3-70b", AROUND)
    assert shipped.name == "llama-3-70b"
    assert shipped.model.build_layers() == scenario.model.build_layers()


def test_overrides_change_what_a_model_starts_with(config: Path) -> None:
    scenario = load(f"hf:{config}", [*AROUND, "strategy=fsdp", "precision=fp32"])
    assert (scenario.strategy.kind, scenario.training.zero, scenario.training.precision) == ("data_parallel", 3, "fp32")


def test_a_model_alone_says_what_it_needs(config: Path) -> None:
    with pytest.raises(ScenarioError, match="needs batch; add --set batch=512, for example"):
        load(f"hf:{config}", ["cluster=dgx-h100"])
    with pytest.raises(ScenarioError, match="this is a model's configuration, not a scenario; give it as hf:"):
        load(config)
