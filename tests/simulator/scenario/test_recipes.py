"""Recipes of products in 8 and 4 bits: which devices have them, how they are named, and what they save."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

ON = ("batch=64", "strategy={kind: hybrid, workers: 8}", "model.layers=8")


def scenario(*overrides: str, cluster: str = "dgx-b200") -> Scenario:
    return load("llama-2-7b", [f"cluster={cluster}", *ON, *overrides])


def step_s(precision: str, cluster: str = "dgx-b200") -> float:
    given = scenario(f"training.precision={precision}", "framework=ideal", cluster=cluster)
    return predict(given, interval=False).step_time_s


@pytest.mark.parametrize("cluster", ["dgx-b200", "b300-cluster", "gb300-nvl72", "rtx-pro-6000-server"])
def test_fewer_bits_are_never_slower(cluster: str) -> None:
    times_s = [step_s(precision, cluster) for precision in ("bf16", "mxfp8", "nvfp4")]
    assert all(slow >= fast for slow, fast in pairwise(times_s))
    assert step_s("nvfp4", cluster) < step_s("fp8", cluster)
    assert step_s("mxfp4", cluster) < step_s("nvfp4", cluster), "NVFP4 reads its inputs once more"


def test_names_of_formats_stand_for_precision_and_recipe() -> None:
    for name, precision in (("mxfp8", "fp8"), ("nvfp4", "fp4"), ("MXFP4", "fp4")):
        found = scenario(f"training.precision={name}")
        assert (found.training.precision, found.recipe) == (precision, name.lower())
    with pytest.raises(ScenarioError, match=r"training\.precision: nvfp4 is not fp4_recipe mxfp4; leave one out"):
        scenario("training={precision: nvfp4, fp4_recipe: mxfp4, optimizer: adam}")


def test_the_recipe_of_4_bits_is_the_vendors() -> None:
    assert scenario("training.precision=fp4").recipe == "nvfp4"
    assert scenario("training.precision=fp4", cluster="mi355x-cluster").recipe == "mxfp4"
    assert scenario("training.precision=mxfp8", cluster="mi355x-cluster").recipe == "mxfp8"


@pytest.mark.parametrize(
    ("overrides", "cluster", "message"),
    [
        (("training.precision=nvfp4",), "dgx-h100", "H100-80GB-SXM has no peak rate for fp4; use one of bf16"),
        (("training.precision=mxfp8",), "dgx-h100", "mxfp8 needs a GPU such as Blackwell, but H100-80GB-SXM is not one"),
        (
            ("training.precision=nvfp4",),
            "mi355x-cluster",
            "nvfp4 needs an NVIDIA GPU, but MI355X-288GB-OAM is not one; use mxfp4",
        ),
        (("training.precision=fp8", "training.fp4_recipe=nvfp4"), "dgx-b200", "scales 4-bit products, but precision is fp8"),
        (("training.precision=fp4", "training.fp8_recipe=current"), "dgx-b200", "scales 8-bit products, but precision is fp4"),
        (("training.precision=fp4", "framework=megatron-core-0.12"), "dgx-b200", "does not support fp4; use "),
    ],
)
def test_recipes_need_a_device_a_precision_and_a_framework(overrides: tuple[str, ...], cluster: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(*overrides, cluster=cluster)
