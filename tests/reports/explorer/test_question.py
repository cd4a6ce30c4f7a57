"""Queries of the explorer: valid ones are parsed, others rejected."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.reports.explorer.question import DEFAULT, Question, Shelf
from scaleproof.simulator.common.errors import InputError

SHELF = Shelf()


def requested(*sets: str, shelf: Shelf = SHELF) -> Question:
    return shelf.question([("scenario", DEFAULT), *(("set", one) for one in sets)])


def test_a_query_gives_a_scenario_and_its_settings_in_order() -> None:
    question = requested("strategy.workers=8", "cluster.network.bandwidth=100 Gbit/s")
    assert question == Question(DEFAULT, ("strategy.workers=8", "cluster.network.bandwidth=100 Gbit/s"))
    assert question.query() == f"?scenario={DEFAULT}&set=strategy.workers%3D8&set=cluster.network.bandwidth%3D100+Gbit%2Fs"


def test_a_query_with_gpus_and_a_pinned_scenario_is_read_back() -> None:
    pinned = Question("resnet50-ring-p100", ("batch=64",), gpus=8)
    question = Question(DEFAULT, ("training.zero=2",), gpus=32, pinned=pinned)
    assert SHELF.question(parse_qsl(question.query().removeprefix("?"))) == question


def test_a_pinned_scenario_may_set_no_more_than_others() -> None:
    with pytest.raises(InputError, match="the page knows no model"):
        SHELF.question([("a", "?scenario=resnet50-ring-p100&set=model=/etc/passwd")])


@pytest.mark.parametrize(
    "override",
    [
        "model=/etc/passwd",
        "framework=/etc/passwd",
        "framework.base=/etc/passwd",
        "framework={base: ../frameworks/ideal.yaml, contention: true}",
        "model=../models/resnet50.yaml",
        "model=hf:config.json",
        "model=python:os:getcwd",
        "model={kind: traced, source: 'python:os:getcwd'}",
        "model.kind=traced",
        "model.source=python:os:getcwd",
        "cluster=/tmp/cluster.yaml",
        "cluster={device: /etc/passwd}",
        "cluster={device: {base: ../secret.yaml}}",
        "cluster.device=x.yaml",
        "cluster.device.base=/etc/passwd",
        "cluster.device={base: [1]}",
        "training.data=/etc/passwd",
        "training={data: /etc/passwd}",
    ],
)
def test_no_setting_reads_a_file_or_runs_code(override: str) -> None:
    with pytest.raises(InputError, match=r"the page (knows|runs|reads) no"):
        requested(override)


def test_settings_of_the_command_line_may_read_files() -> None:
    shelf = Shelf("mine.yaml", ("model=hf:config.json",))
    assert requested("model=hf:config.json", shelf=shelf).sets == ("model=hf:config.json",)
    with pytest.raises(InputError, match="the page knows no model"):
        requested("model=hf:other.json", shelf=shelf)


@pytest.mark.parametrize(
    "parameters",
    [
        [("scenario", "../../etc/passwd")],
        [("scenario", "scenarios/what-if/resnet50-ring-p100.yaml")],
        [("scenario", DEFAULT), ("scenario", "other")],
        [("file", "x")],
        [("gpus", "0")],
        [("gpus", "-1")],
        [("gpus", "9" * 20)],
        [("gpus", "²")],
        [("look", "everything")],
        [("a", "?a=%3Fa%3D")],
        [("a", "?look=plan")],
        [("a", "?scenario=nothing")],
        [("set", "no-equals")],
        [("set", "=8")],
        [("set", f"name={'x' * 5000}")],
        [("set", "steps=1")] * 100,
        [("set", "name={a: *b}")],
        [("set", "name=&a [*a, *a]")],
        [("set", "name=!!python/object:os.system x")],
        [("set", f"name={'[' * 900}{']' * 900}")],
        [("set", "name={a: [}")],
        [("set", "name=2026-99-99")],
    ],
)
def test_invalid_queries_give_a_one_sentence_error(parameters: list[tuple[str, str]]) -> None:
    with pytest.raises(InputError) as caught:
        SHELF.question(parameters)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_query_text_is_parsed_or_rejected(key: str, value: str) -> None:
    try:
        question = requested(f"{key}={value}")
    except InputError:
        return
    assert question.sets == (f"{key}={value}",)
