"""docs/reference/measuring.md names what can be measured, docs/measured/netlab.md what came of every netlab scenario."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from scaleproof.simulator.common.catalog import names
from scaleproof.simulator.scenario.schema import KINDS as STRATEGIES
from scaleproof.validator.train.capabilities import KINDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "measuring.md").read_text()
RESULTS = (DOCS / "measured" / "netlab.md").read_text()
ROWS: dict[str, str] = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", PAGE, re.MULTILINE))


def test_the_page_lists_the_fields_of_every_measured_strategy() -> None:
    # captured scripts train by themselves
    assert {*ROWS} & {*STRATEGIES.names()} == {*KINDS} == {*STRATEGIES.names()} - {"captured"}
    for kind in KINDS:
        found = STRATEGIES.find(kind)
        assert found is not None
        fields = {info.alias or name for name, info in found.model_fields.items()} - {"kind"}
        assert set(re.findall(r"`(\w+)`", ROWS[kind])) == fields


@pytest.mark.parametrize("name", names("netlab"))
def test_the_page_lists_the_result_of_each_shipped_lab_scenario(name: str) -> None:
    assert re.search(rf"^\| {name} \|", RESULTS, re.MULTILINE)


def test_the_table_of_supported_settings_matches_the_code() -> None:
    support = runpy.run_path(str(DOCS / "scripts" / "support.py"))

    assert f"{support['legend']()}\n\n{support['table']()}\n\n{support['reasons']()}\n" in PAGE


def test_every_probe_of_the_page_predicts_some_strategy() -> None:
    support = runpy.run_path(str(DOCS / "scripts" / "support.py"))

    for probe in support["PROBES"]:
        assert {support["outcome"](probe, kind) for kind in support["KINDS"]} != {"–"}, probe.label()


def test_every_field_is_run_or_refused_with_a_reason() -> None:
    support = runpy.run_path(str(DOCS / "scripts" / "support.py"))

    for probe in support["PROBES"]:
        found = [support["support"](probe, kind) for kind in support["KINDS"]]
        assert all(one.is_run != bool(one.refusal) for one in found if one.is_predicted), probe.label()
        assert any(one.is_predicted for one in found), probe.label()
