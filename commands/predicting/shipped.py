"""The commands list, show and schema: the shipped files, and the JSON schema of scenarios."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_json
from scaleproof.commands.text.tables import table

# Headings of the folders of scenarios. Other folders are headed by their names.
_TITLES: Final = {
    "what-if": "scenarios", "systems": "scenarios: named systems", "demo": "scenarios of the demo, small enough to measure",
    "netlab": "scenarios for an emulated network inside this machine",
}  # fmt: skip


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    Command(commands, "schema", _schema, "print the JSON schema of scenarios, for editors")

    Command(
        commands,
        "list",
        _list,
        "list the shipped scenarios, systems, studies, claims, models, clusters, frameworks and devices",
    )

    show = Command(
        commands,
        "show",
        _show,
        "print a shipped scenario, study, claim, model, cluster, framework or device, or published:ROW-ID",
    )
    show.add("NAME", "a name from 'scaleproof list', or published:ROW-ID")


def _schema(options: argparse.Namespace) -> int:
    from scaleproof.simulator.scenario.schema import json_schema

    return print_json(json_schema())


def _list(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common import catalog

    parts = ("studies", "claims", "models", "clusters", "frameworks", "devices")
    for folder in (*catalog.SCENARIO_FOLDERS, *parts):
        print(_TITLES.get(folder, folder))
        rows = ((name, catalog.summary(folder, name)) for name in catalog.names(folder))
        print("\n".join(table(rows, "<", (34,), gap=1, indent="  ")))
    return 0


def _show(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.scenario.published.tables import PUBLISHED

    if options.name.startswith(PUBLISHED):
        from scaleproof.simulator.scenario.published.yaml_text import text_of

        sys.stdout.write(text_of(options.name))
        return 0
    sys.stdout.write(catalog.find_anything(options.name).read_text(encoding="utf-8"))
    return 0
