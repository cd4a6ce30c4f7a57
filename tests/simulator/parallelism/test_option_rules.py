"""Rules of options: another value than the default is accepted where it has an effect, and refused, or ignored, elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Final

import pytest

from scaleproof.simulator.analysis.planner.estimate import Space, every
from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.parallelism import DataParallel, Hybrid, Pipeline
from scaleproof.simulator.parallelism.option_rules import Rule, rules_of
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.dump import dump_part
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
MIXTURE: Final = (
    "model={kind: llama, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, "
    "experts: {count: 8, active: 2, feedforward: 64}}"
)
CLICKS: Final = "model={kind: dlrm, dense: 4, bottom: [16], top: [16, 1], tables: [{rows: 1000, dim: 16, count: 4}]}"
# Values other than the default, with the fields that these always go with.
SET: Final[Mapping[str, str]] = {
    "chunks": "2, schedule: interleaved_1f1b", "account_for_embedding": "true", "account_for_loss": "true",
    "overlap": "true", "algorithm": "ring", "compression": "{kind: fp16}", "prefetch": "2", "reshard": "false",
    "scatter": "step", "shard_over": "2", "sequence_parallel": "true", "overlap_tensor": "true", "context_by": "ulysses",
    "overlap_experts": "true", "overlap_shared_experts": "true", "node_limit": "1", "dispatcher": "deepep",
    "dispatch_precision": "fp8",
    "combine_precision": "bf16", "split_sends": "true", "overlap_gather": "true", "overlap_sends": "true",
    "bucket_bytes": "1 MiB", "first_bucket_bytes": "1 MiB", "tables": "{shard: row}",
}  # fmt: skip
RULES: Final = [(option, rule) for option, rules in rules_of(Hybrid).items() for rule in rules]
REFUSING: Final = [pair for pair in RULES if pair[1].reason is not None]
IGNORING: Final = [pair for pair in RULES if pair[1].reason is None]


# Values of what rules need that scenarios of these tests can have, the least demanding first.
POSSIBLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "zero": (0, 1, 2, 3), "servers": (0, 1), "averages": (1, 0), "sequence_parallel": (0, 1),
    "tensor": (1, 2), "stages": (1, 2), "context": (1, 2), "expert": (1, 2), "microbatches": (1, 2),
    "overlap_experts": (0, 1),
    "nodes": (1, 2), "balance": ("layers", "time"),
}  # fmt: skip


def name_of(value: object) -> str:
    """The name of a parameter of a test: an option, or what a rule needs."""
    return value.needs if isinstance(value, Rule) else str(value)


def needed(option: str) -> dict[str, Any]:
    """The smallest values with which an option has an effect."""
    rules = rules_of(Hybrid)[option]
    names = list(dict.fromkeys(name for rule in rules for name in rule.names))
    combinations = (dict(zip(names, values, strict=True)) for values in product(*(POSSIBLE[name] for name in names)))
    smallest = next(values for values in combinations if not any(rule.is_broken(values) for rule in rules))
    return smallest | ({"tensor": 2} if "sequence_parallel" in smallest else {})


def breaking(option: str, rule: Rule) -> Iterator[dict[str, Any]]:
    """The values with which an option has an effect, with one of them as the rule does not allow."""
    values = needed(option)
    for name in rule.names:
        for value in POSSIBLE[name]:
            if rule.is_broken(values | {name: value}):
                yield values | {name: value}


def overrides(option: str, values: Mapping[str, Any]) -> list[str]:
    """The option, if any, in a hybrid with these values; four ranks fill a node."""
    given = {"microbatches": 2, "expert": 1, **values}
    zero, nodes, averages = (given.pop(name, least) for name, least in (("zero", 0), ("nodes", 1), ("averages", 1)))
    workers = 4 * nodes if averages else 1
    sequence_parallel = bool(given.pop("sequence_parallel", 0))
    fields = {"workers": workers, **given} | ({"sequence_parallel": "true"} if sequence_parallel else {})
    strategy = ", ".join(f"{name}: {value}" for name, value in (fields | ({option: SET[option]} if option else {})).items())
    # the model that has something to divide
    model = CLICKS if option == "tables" and values == needed(option) else MIXTURE
    return [model, "framework=ideal", f"strategy={{kind: hybrid, {strategy}}}", f"training.zero={zero}"]


def test_each_option_with_a_rule_is_tested_and_is_an_option_of_hybrids() -> None:
    assert SET.keys() == rules_of(Hybrid).keys()
    for other in (DataParallel, Pipeline):
        assert rules_of(other).items() <= rules_of(Hybrid).items()


@pytest.mark.parametrize("option", SET)
def test_an_option_with_effect_is_accepted(small: Make, option: str) -> None:
    strategy = small(*overrides(option, needed(option))).strategy
    assert getattr(strategy, option) != Hybrid.model_fields[option].default


@pytest.mark.parametrize(("option", "rule"), REFUSING, ids=name_of)
def test_an_option_without_effect_is_refused_with_a_remedy(small: Make, option: str, rule: Rule) -> None:
    for values in breaking(option, rule):
        with pytest.raises(ScenarioError) as caught:
            small(*overrides(option, values))
        reason = rule.message(SET[option].partition(",")[0], {"ranks": 4})
        assert f"strategy.{option}: {reason}" in str(caught.value)


@pytest.mark.parametrize(("option", "rule"), IGNORING, ids=name_of)
def test_an_option_without_effect_that_is_accepted_changes_no_prediction(small: Make, option: str, rule: Rule) -> None:
    for values in breaking(option, rule):
        with_option, without = (small(*overrides(one, values)) for one in (option, ""))
        assert predict(with_option).step_time_s == predict(without).step_time_s
        assert dump_part(with_option, "strategy") == dump_part(without, "strategy")


@pytest.mark.parametrize(
    ("zero", "gathers"), [(1, {"overlap_gather": "true"}), (3, {"prefetch": "2", "reshard": "false"})], ids=["zero 1", "zero 3"]
)
def test_a_planner_sets_options_only_where_they_have_an_effect(small: Make, zero: int, gathers: dict[str, str]) -> None:
    """In the space of a scenario that sets every option which plans keep."""
    others = "chunks", "compression", "scatter", "shard_over", "tables", "overlap_shared_experts"
    kept = {name: value for name, value in SET.items() if name not in others}
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
        options = found.space.options(columns)
        for option, rule in REFUSING:
            if options.get(option, defaults[option]) != defaults[option]:
                seen.add(option)
                assert not rule.is_broken(columns)
        # a scenario with an option where its rules refuse it is not valid
        found.scenario(row)
    assert seen == {option for option, _ in REFUSING} & own.keys() - {"sequence_parallel"}
