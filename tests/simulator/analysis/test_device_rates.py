"""Rates of single kernels of a device, and facts on it with how each is known."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.device_facts import Fact, facts
from scaleproof.simulator.analysis.device_rates import (
    UNMEASURED,
    attentions,
    implementations,
    product_error,
    running_only,
    squares,
)
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.scenario.read import load_device


def shipped(name: str) -> Device:
    return load_device(name)


def flat(**fields: object) -> Device:
    numbers = {"name": "flat", "peak": {"bf16": "100 TFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "1 TB/s"}
    return Device.model_validate(numbers | fields)


def by_name(device: Device) -> dict[str, Fact]:
    return {fact.what: fact for fact in facts(device)}


def test_a_device_with_an_efficiency_reaches_it_at_every_size() -> None:
    (line,) = squares(flat(efficiency=0.4))
    assert [rate.burst for rate in line.rates] == pytest.approx([40e12] * len(line.rates))
    assert [rate.sustained for rate in line.rates] == pytest.approx([40e12] * len(line.rates))


def test_no_square_product_exceeds_the_peak_and_large_ones_come_near() -> None:
    device = shipped("h100-80gb-sxm")
    for line in squares(device):
        rates = [rate.burst for rate in line.rates]
        assert max(rates) <= device.peak_flops[line.precision]
        assert rates[0] < 0.5 * max(rates)


def test_attention_has_a_line_for_each_implementation_of_its_generation() -> None:
    device = shipped("h100-80gb-sxm")
    assert device.kernels is not None
    names = list(implementations(device.kernels))
    lines = attentions(device)
    assert [line.name for line in lines] == names
    assert {"flash-2", "flash-3"} <= set(names)
    last = {line.name: line.rates[-1].burst for line in lines}
    assert last["flash-3"] > last["flash-2"]
    only = running_only(device, "flash-2").kernels
    assert only is not None
    assert list(only.attention) == ["flash-2"]


def test_measured_rates_have_narrower_intervals_than_unknown_ones() -> None:
    low, high = product_error(shipped("h100-80gb-sxm"), "bf16")
    assert UNMEASURED[0] < low < 0 < high < UNMEASURED[1]
    assert product_error(flat(), "bf16") == UNMEASURED


def test_facts_say_how_they_are_known() -> None:
    known = by_name(shipped("h100-80gb-sxm"))
    assert known["memory bandwidth"] == Fact("memory bandwidth", "3.35 TB/s", "data sheet")
    assert known["matrix products bf16"].origin == "measured"
    assert known["usable memory"].origin == "measured"
    assert known["issue of a kernel"].origin == "assumed"
    assert "other matrix products" in known
    assert by_name(flat(efficiency=0.4))["share of the peak"].value == "40.0 %"
