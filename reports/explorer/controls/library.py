"""The scenarios that ship, in groups by what is trained and how."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

from scaleproof.reports.explorer.controls import facts
from scaleproof.simulator.common import catalog, yaml_file

_LANGUAGE: Final = "Language models"
_SERVERS: Final = "Parameter servers"
_OTHERS: Final = "Vision models"
_SYSTEMS: Final = "Systems from the literature and practice"
# titles of the groups, in their order on the page
_TITLES: Final = (_LANGUAGE, _SERVERS, _OTHERS, _SYSTEMS, "Small runs on one machine", "Emulated networks")
_OF_FOLDER: Final = dict(zip(("systems", "demo", "netlab"), _TITLES[3:], strict=True))


def scenario_groups(own: str | None) -> list[dict[str, Any]]:
    """Groups of scenarios with name and description each, that of the command line first. own: its name or path."""
    shipped: list[dict[str, Any]] = [{"title": title, "scenarios": scenarios} for title, scenarios in _shipped().items()]
    names = {one["name"] for group in shipped for one in group["scenarios"]}
    if own is None or own in names:
        return shipped
    return [{"title": "From the command line", "scenarios": [{"name": own, "description": ""}]}, *shipped]


@functools.cache
def _shipped() -> dict[str, list[dict[str, str]]]:
    groups: dict[str, list[dict[str, str]]] = {title: [] for title in _TITLES}
    for folder in catalog.SCENARIO_FOLDERS:
        for name in catalog.names(folder):
            title = _OF_FOLDER.get(folder) or _title(catalog.ROOT / folder / f"{name}.yaml")
            groups[title].append({"name": name, "description": catalog.summary(folder, name)})
    return groups


def _title(path: Path) -> str:
    """The group of a scenario, from its strategy and its model."""
    data: Any = yaml_file.read(path).data
    strategy, model = data["strategy"], data["model"]
    if (strategy if isinstance(strategy, str) else strategy["kind"]) == "parameter_server":
        return _SERVERS
    is_language = "sequence" in model if isinstance(model, dict) else facts.models()[model].heads is not None
    return _LANGUAGE if is_language else _OTHERS
