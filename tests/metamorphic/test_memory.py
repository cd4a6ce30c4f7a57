"""Memory grows with what is stored, and falls with what is divided or computed again."""

from __future__ import annotations

from typing import Any, Final

import pytest

from scaleproof.simulator.memory import memory
from scaleproof.simulator.scenario.load import load
from tests.metamorphic.drawn import BLOCKS, Fields, drawn, is_valid, seeds

SCENARIOS: Final = 20
# Each group of ranks has a communicator with buffers of its own.
COMMUNICATORS: Final = "library"
STATES: Final = ("parameters", "gradients", "master_parameters", "optimizer_states")


def used_bytes(fields: Fields, overrides: dict[str, Any] | None = None, without: str = "") -> float:
    """Bytes of the rank that uses most. without: a holder that is not counted."""
    worst = memory(load(fields, overrides or {})).worst
    return worst.total_bytes - worst.holders_bytes.get(without, 0.0)


def state_bytes(fields: Fields, overrides: dict[str, Any] | None = None) -> float:
    """Bytes of parameters, gradients and optimizer states of the rank that uses most."""
    holders = memory(load(fields, overrides or {})).worst.holders_bytes
    return sum(holders.get(name, 0.0) for name in STATES)


def models(block: int, *kinds: str) -> list[Fields]:
    """Drawn scenarios of transformers, whose size is a field."""
    drawn_ones = (drawn(seed, *kinds) for seed in seeds(block, SCENARIOS))
    return [fields for fields in drawn_ones if isinstance(fields["model"], dict)]


@pytest.mark.parametrize("block", BLOCKS)
def test_memory_grows_with_samples_sequence_and_layers(block: int) -> None:
    for fields in models(block):
        before = used_bytes(fields)
        larger = {
            "batch.per_worker": 2 * fields["batch"]["per_worker"],
            "model.layers": 2 * fields["model"]["layers"],
            **({"model.sequence": 2 * fields["model"]["sequence"]} if fields["model"]["kind"] in ("gpt", "llama") else {}),
        }
        for field, value in larger.items():
            if is_valid(fields, {field: value}):
                assert used_bytes(fields, {field: value}) >= before * (1 - 1e-9), (field, fields)


@pytest.mark.parametrize("block", BLOCKS)
def test_memory_falls_with_recomputation_and_sequence_parallelism(block: int) -> None:
    for fields in models(block, "data_parallel", "pipeline", "hybrid"):
        plain = fields | {"training": fields["training"] | {"recompute": "none"}}
        assert used_bytes(plain, {"training.recompute": "full"}) <= used_bytes(plain) * (1 + 1e-9), fields
        if fields["strategy"].get("tensor", 1) > 1:
            off, on = ({"strategy.overlap_tensor": False, "strategy.sequence_parallel": value} for value in (False, True))
            if is_valid(plain, on):
                assert used_bytes(plain, on) <= used_bytes(plain, off) * (1 + 1e-9), fields


@pytest.mark.full
@pytest.mark.parametrize("block", BLOCKS)
def test_memory_falls_with_tensor_and_context_parallelism(block: int) -> None:
    """With the same framework, and without ZeRO, which shards over context-parallel ranks too and gathers what it needs."""
    for fields in models(block, "hybrid"):
        fields["training"]["zero"] = 0
        for field in ("tensor", "context"):
            twice = {f"strategy.{field}": 2 * fields["strategy"].get(field, 1)}
            if not is_valid(fields, twice):
                continue
            framework = {"framework": load(fields, twice).framework.name}
            more, less = (used_bytes(fields, framework | division, without=COMMUNICATORS) for division in ({}, twice))
            assert less <= more * (1 + 1e-9), (field, less - more, fields)


@pytest.mark.parametrize("block", BLOCKS)
def test_stored_states_fall_with_the_stage_of_zero(block: int) -> None:
    """Each stage shards in addition: optimizer states, gradients, parameters."""
    for fields in models(block, "data_parallel"):
        ideal = fields | {"framework": "ideal"}
        stages = [state_bytes(ideal, {"training.zero": zero}) for zero in range(4)]
        assert stages == sorted(stages, reverse=True), (stages, fields)
