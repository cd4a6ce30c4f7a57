"""Fields of scenarios by path, and differences of two scenarios."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BeforeValidator, WrapValidator

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Unit
from scaleproof.simulator.scenario.fields import differences, field_at, value_at
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]


# bytes of an element or of a parameter, which are numbers as data types are
_OF_AN_ELEMENT = {
    "MemoryBehaviour.master_bytes", "MemoryBehaviour.flat_bytes", "MemoryBehaviour.fp8_input_bytes",
    "MemoryBehaviour.kept_bytes", "MemoryBehaviour.frozen_kept_bytes", "Framework.extra_bytes", "Framework.parameter_bytes",
    "Framework.optimizer_bytes", "Framework.clip_bytes",
    "Autocast.extra_bytes", "Autocast.parameter_bytes", "RingAttention.key_gradient_bytes",
}  # fmt: skip
_UNITS = re.compile(r"_(s|bytes|Bps|flops|W|J|Hz|USD)$")


def test_every_field_with_a_unit_in_its_name_takes_text_with_a_unit() -> None:
    """A number without a unit is ambiguous: what is meant in milliseconds would be read as seconds."""
    plain = {
        f"{spec.__name__}.{name}"
        for spec in _subclasses(Spec)
        if spec.__module__.startswith("scaleproof.simulator")
        for name, field in spec.model_fields.items()
        if _UNITS.search(name) and not _parses_text(field.annotation, field.metadata)
    }
    assert plain == _OF_AN_ELEMENT


def _subclasses(spec: type[Spec]) -> Iterator[type[Spec]]:
    for one in spec.__subclasses__():
        yield one
        yield from _subclasses(one)


def _parses_text(annotation: object, metadata: Sequence[object] = ()) -> bool:
    if any(isinstance(one, BeforeValidator | WrapValidator) for one in metadata):
        return True
    inner = getattr(annotation, "__metadata__", ())
    return any(_parses_text(one, inner) for one in get_args(annotation))


@pytest.mark.parametrize(
    ("path", "value", "text", "column"),
    [
        ("cluster.network.bandwidth", 1.25e9, "10.0 Gbit/s", "cluster.network.bandwidth_Bps"),
        ("cluster.network.latency", 20e-6, "20.0 us", "cluster.network.latency_s"),
        ("cluster.device.memory_bandwidth", 100e9, "100 GB/s", "cluster.device.memory_bandwidth_Bps"),
        ("cluster.device.peak.fp32", 1e12, "1.00 TFLOP/s", "cluster.device.peak_flops.fp32"),
        ("cluster.device.memory", 8 * 2**30, "8.00 GiB", "cluster.device.memory_bytes"),
        ("strategy.workers", 4, "4", "strategy.workers"),
        ("strategy.overlap", True, "true", "strategy.overlap"),
        ("batch.total", 48, "48", "batch.total"),
        ("batch.per_worker", None, "–", "batch.per_worker"),
        ("model.hidden", 64, "64", "model.hidden"),
    ],
)
def test_fields_are_found_by_the_path_that_set_takes(small: Make, path: str, value: object, text: str, column: str) -> None:
    found = value_at(small(), path)
    assert found.value == pytest.approx(value) if isinstance(value, float) else found.value == value
    assert str(found) == text
    assert field_at(path).column == column


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("cluster.network.bandwith", "did you mean 'bandwidth'"),
        ("cluster.network.bandwidth.low", "cluster.network.bandwidth has no field 'low'; known there: nothing"),
        ("nothing", "scenario has no field 'nothing'"),
        ("", "scenario has no field ''"),
    ],
)
def test_unknown_fields_give_a_one_line_error(small: Make, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        value_at(small(), path)
    assert len(str(caught.value).splitlines()) == 1


def unit(path: str) -> Unit:
    """Unit of a field in any scenario that has it."""
    found = value_at(load("resnet50-servers-p100", ["cluster.node.power=2 kW", "cluster.node.price=1 USD/h"]), path).unit
    assert found is not None
    return found


RATE, MEMORY = unit("cluster.network.bandwidth"), unit("cluster.device.memory_bandwidth")
SIZE, TIME, PRICE = unit("cluster.device.memory"), unit("cluster.network.latency"), unit("cluster.node.price")


@given(value=st.floats(1e-9, 1e18))
def test_written_numbers_are_read_back_unchanged(value: float) -> None:
    assert PRICE.parse(PRICE.exactly(value)) == pytest.approx(value, rel=1e-12)
    for one in (RATE, MEMORY, SIZE, TIME):
        assert one.parse(one.exactly(value)) == value


@example(number=Decimal("1.5e-21"), name="ns")
@given(
    number=st.decimals("1e-18", 10**6, allow_nan=False),
    name=st.sampled_from(TIME.names + RATE.names + SIZE.names + PRICE.names),
)
def test_values_are_written_with_full_precision(number: Decimal, name: str) -> None:
    one = next(one for one in (TIME, RATE, SIZE, PRICE) if name in one.names)
    value = one.parse(f"{number} {name}")
    assert one.parse(one.exactly(value)) == value


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (RATE, "25 Gbit/s"), (RATE, "400 Gbit/s"), (RATE, "300 GB/s"), (RATE, "33.3 Gbit/s"), (RATE, "500 Mbit/s"),
        (MEMORY, "3.35 TB/s"), (MEMORY, "10 GB/s"), (MEMORY, "60 GB/s"), (SIZE, "64 MiB"), (SIZE, "25 MiB"), (SIZE, "1 GB"),
        (SIZE, "80 GiB"), (TIME, "3 us"), (TIME, "41.64 us"), (TIME, "90 s"), (TIME, "0.5069 ns"), (TIME, "2087 us"),
        (PRICE, "32.77 USD/h"), (TIME, "0 s"),
    ],
)  # fmt: skip
def test_numbers_are_written_with_usual_units(one: Unit, text: str) -> None:
    assert one.exactly(one.parse(text)) == text


def test_differences_show_both_values_with_units(small: Make) -> None:
    a, b = small(), small("cluster.network.bandwidth=20 Gbit/s", "strategy.workers=8")
    reported = {change.field: (change.a, change.b) for change in differences(a, b)}
    assert reported == {"cluster.network.bandwidth": ("10.0 Gbit/s", "20.0 Gbit/s"), "strategy.workers": ("4", "8")}
    assert {change.field: (change.b, change.a) for change in differences(b, a)} == reported


def test_differences_of_kind_show_only_nondefault_fields(small: Make) -> None:
    reported = {c.field: (c.a, c.b) for c in differences(small(), small("strategy={kind: pipeline, stages: 3}"))}
    assert reported["strategy.kind"] == ("data_parallel", "pipeline")
    assert reported["strategy.stages"] == ("–", "3")
    assert "strategy.schedule" not in reported


def test_nearly_equal_numbers_are_shown_with_all_digits(small: Make) -> None:
    (change,) = differences(small(), small("cluster.network.bandwidth=10.0001 Gbit/s"))
    assert (change.a, change.b) == ("10 Gbit/s", "10.0001 Gbit/s")


def test_differences_of_tables_are_summarised_by_entries(small: Make) -> None:
    a = small("cluster.network.exceptions=[{at: [1], bandwidth: 1 Gbit/s}]")
    b = small("cluster.network.exceptions=[{at: [1], bandwidth: 1 Gbit/s}, {at: [2], bandwidth: 1 Gbit/s}]")
    (change,) = differences(a, b)
    assert (change.a, change.b) == ("1 entry", "2 entries, 1 of them the same")
    (change,) = differences(small(), a)
    assert (change.a, change.b) == ("–", "1 entry")
