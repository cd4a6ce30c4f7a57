"""Software that is not named: the frameworks that it may be like, their middle, and what their spread does to intervals."""

from __future__ import annotations

import math

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.frameworks.prior import Software, SoftwarePrior, _members, relative_times
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.framework_choice import software_prior, software_words
from scaleproof.simulator.uncertainty.prediction_interval import spread
from tests.simulator.frameworks.scenarios import scenario

SHARDED = ("cluster=dgx-a100", "training.zero=3", "training.precision=bf16")


def prior(*needed: str, flash: bool = True, words: str = "") -> SoftwarePrior:
    return SoftwarePrior.of(frozenset(needed), flash, Software.from_words(words))


@pytest.mark.parametrize(
    ("words", "kind", "year"),
    [
        ("PaddlePaddle 2.1, 2021", "paddle", 2021),
        ("T5X on JAX", "jax", None),
        ("Megatron-DeepSpeed fork of 2022", "megatron", 2022),
        ("our own trainer", None, None),
    ],
)
def test_words_say_the_kind_and_the_year(words: str, kind: str | None, year: int | None) -> None:
    assert Software.from_words(words) == (kind, year)


def test_members_run_the_job_and_are_of_the_kind_and_year() -> None:
    known = prior("zero_3", words="jax 2023")
    assert known.names
    for name in known.names:
        use = shipped(name).use
        assert use is not None
        assert (use.kind, use.years[0] <= 2023 <= use.years[1]) == ("jax", True) or known.names == ("jax-maxtext",)
    assert all("zero_3" in shipped(name).supports for name in prior("zero_3").names)
    assert all(shipped(name).has_flash for name in prior("data_parallel").names)


def test_the_middle_has_half_of_the_weight_on_each_side() -> None:
    for one in (prior("zero_3"), prior("tensor"), prior("data_parallel", flash=False)):
        at = one.names.index(one.middle)
        assert math.fsum(one.weights) == pytest.approx(1)
        assert math.fsum(one.weights[:at]) <= 0.5
        assert math.fsum(one.weights[at + 1 :]) <= 0.5
        low, high = one.log_ends(relative_times(one.times != prior("data_parallel", flash=False).times)[one.middle])
        assert low <= 0 <= high


@pytest.mark.parametrize("flash", [True, False])
def test_the_table_has_all_frameworks_of_the_prior(flash: bool) -> None:
    """Written by `python benchmarks/unknown_software.py --write`."""
    members = {name for name in names() if shipped(name).use is not None and (shipped(name).has_flash or not flash)}
    assert set(relative_times(flash)) == members
    for name in members if not flash else ():
        member = _members()[name]
        assert (member.use, member.supports) == (shipped(name).use, frozenset(shipped(name).supports))


def test_unknown_software_is_the_middle_of_its_kind() -> None:
    one = scenario(*SHARDED, "framework=t5x-of-2023")
    found = software_prior(one)
    assert one.framework_is_default
    assert one.software == "t5x-of-2023"
    assert shipped(one.framework.name).use is not None
    assert found is None or one.framework.name == found.middle
    usual = scenario(*SHARDED, "framework=zzz")
    assert software_prior(usual) == prior("zero_3")
    assert usual.framework.name == prior("zero_3").middle


def test_names_that_are_nearly_of_a_framework_are_refused() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'pytorch-ddp'"):
        scenario(*SHARDED, "framework=pytorch-dpp")
    with pytest.raises(ScenarioError, match="is a cluster, not a framework"):
        scenario(*SHARDED, "framework=dgx-a100")


def test_the_spread_of_software_widens_the_interval_and_is_said() -> None:
    unknown, named = scenario(*SHARDED), scenario(*SHARDED, "framework=pytorch-fsdp2")
    assert unknown.framework == named.framework
    assert spread(unknown).shares["software"] > 0
    assert "software" not in spread(named).shares
    assert "name one to narrow the interval" in predict(unknown).provenance["notes"]
    assert software_words(named) == ""
