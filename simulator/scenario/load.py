"""Loads a scenario from a file, by the name of a shipped one, or from a row of a table of published measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.scenario.published.tables import PUBLISHED
from scaleproof.simulator.scenario.read import build
from scaleproof.simulator.scenario.schema import Scenario


def load(reference: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Loads a scenario with `key.path=value` overrides. reference: a path, the name of a shipped scenario, or
    `published:ROW-ID`.

    Raises NotFoundError, or ScenarioError with every problem as `file:line:column: field: what; what to do`.
    """
    if str(reference).startswith(PUBLISHED):
        from scaleproof.simulator.scenario.published.yaml_text import text_of

        return build(yaml_file.parse(text_of(str(reference)), str(reference)), Path(str(reference)), overrides)
    path = catalog.find_scenario(str(reference))
    located = yaml_file.read(path)
    return build(located, path, overrides)
