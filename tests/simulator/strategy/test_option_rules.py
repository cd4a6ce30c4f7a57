"""Rules of options: another value than the default is refused where it has no effect, and accepted where it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from scaleproof.simulator.analysis.planner.estimate import Space, every
from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import DataParallel, Hybrid, Pipeline
from scaleproof.simulator.strategy.option_rules import Rule, rules_of

Make = Callable[..., Scenario]
MIXTURE: Final = (
    "model={kind: llama, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, "
    "experts: {count: 8, active: 2, feedforward: 64}}"
)
# Values other than the default, with the fields that these always go with.
SET: Final[Mapping[str, str]] = {
    "chunks": "2, schedule: interleaved_1f1b", "account_for_embedding": "true", "account_for_loss": "true",
    "overlap": "true", "algorithm": "ring", "compression": "{kind: fp16}", "prefetch": "2", "reshard": "false",
    "scatter": "step", "shard_over": "2", "sequence_parallel": "true", "overlap_tensor": "true", "context_by": "ulysses",
    "overlap_experts": "true", "node_limit": "1", "deduplicated": "true", "dispatch_precision": "fp8",
    "combine_precision": "bf16", "split_sends": "true", "overlap_gather": "true",
}  # fmt: skip
RULES: Final = [(option, rule) for option, rules in rules_of(Hybrid).items() for rule in rules]
IDS: Final = [f"{option}-{'-'.join(rule.needs)}" for option, rule in RULES]


def needed(option: str) -> dict[str, int]:
    """The smallest values with which an option has an effect."""
    ranges = {name: values for rule in rules_of(Hybrid)[option] for name, values in rule.needs.items()}
    smallest = {name: values[0] for name, values in ranges.items()}
    return smallest | ({"tensor": 2} if "sequence_parallel" in smallest else {})


def overrides(option: str, values: Mapping[str, int]) -> list[str]:
    """The option in a hybrid with these values; four ranks fill a node."""
    given = {"microbatches": 2, "expert": 1, **values}
    zero, nodes = given.pop("zero", 0), given.pop("nodes", 2)
    workers = 4 * nodes if "nodes" in values else 4
    sequence_parallel = bool(given.pop("sequence_parallel", 0))
    fields = {"workers": workers, **given} | ({"sequence_parallel": "true"} if sequence_parallel else {})
    strategy = ", ".join(f"{name}: {value}" for name, value in {**fields, option: SET[option]}.items())
    return [MIXTURE, "framework=ideal", f"strategy={{kind: hybrid, {strategy}}}", f"training.zero={zero}"]


def outside(values: range) -> Iterator[int]:
    """The nearest values outside a range that a number of ranks, or a stage of ZeRO, may have."""
    yield from ([values.start - 1] if values.start > 0 else [])
    yield from ([values.stop] if values.stop < 4 else [])


def test_each_option_with_a_rule_is_tested_and_is_an_option_of_hybrids() -> None:
    assert SET.keys() == rules_of(Hybrid).keys()
    for other in (DataParallel, Pipeline):
        assert rules_of(other).items() <= rules_of(Hybrid).items()


@pytest.mark.parametrize("option", SET)
def test_an_option_with_effect_is_accepted(small: Make, option: str) -> None:
    strategy = small(*overrides(option, needed(option))).strategy
    assert getattr(strategy, option) != Hybrid.model_fields[option].default


@pytest.mark.parametrize(("option", "rule"), RULES, ids=IDS)
def test_an_option_without_effect_is_refused_with_a_remedy(small: Make, option: str, rule: Rule) -> None:
    for name, values in rule.needs.items():
        for value in outside(values):
            if (name, value) == ("sequence_parallel", 2):
                continue
            with pytest.raises(ScenarioError) as caught:
                small(*overrides(option, {**needed(option), name: value}))
            reason = rule.message(SET[option].partition(",")[0], {"ranks": 4})
            assert f"strategy.{option}: {reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("zero", "gathers"), [(1, {"overlap_gather": "true"}), (3, {"prefetch": "2", "reshard": "false"})], ids=["zero 1", "zero 3"]
)
def test_a_planner_sets_options_only_where_they_have_an_effect(small: Make, zero: int, gathers: dict[str, str]) -> None:
    """In the space of a scenario that sets every option which plans keep."""
    kept = {name: value for name, value in SET.items() if name not in ("chunks", "compression", "scatter", "shard_over")}
    own = {name: value for name, value in kept.items() if name not in ("overlap_gather", "prefetch", "reshard")} | gathers
    degrees = "workers: 2, tensor: 2, stages: 2, context: 2, expert: 2, microbatches: 2"
    fields = ", ".join(f"{name}: {value}" for name, value in own.items())
    base = small(MIXTURE, "framework=ideal", f"strategy={{kind: hybrid, {degrees}, {fields}}}", f"training.zero={zero}")
    both = (1, 2)
    found = every(
        Space(base, (4, 8), tensor=both, context=both, expert=both, stages=both, samples=both, zero=(0, 1, 2, 3),
              sequence_parallel=(False, True))
    )  # fmt: skip
    defaults = {name: info.default for name, info in Hybrid.model_fields.items()}
    seen: set[str] = set()
    for row in range(0, len(found), 7):
        columns: dict[str, Any] = {name: int(getattr(found, name)[row]) for name in COLUMNS}
        for option, rules in rules_of(Hybrid).items():
            value = found.space.options(columns).get(option, defaults[option])
            if value == defaults[option]:
                continue
            seen.add(option)
            assert all(columns[name] in values for rule in rules for name, values in rule.needs.items() if name in columns)
        # a scenario with an option where its rules refuse it is not valid
        found.scenario(row)
    assert seen == own.keys() - {"sequence_parallel"}
