"""The commands list, show and schema: the shipped files, and the JSON schema of scenarios."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

# Headings of the folders of scenarios. Other folders are headed by their names.
_TITLES: Final = {
    "what-if": "scenarios", "systems": "scenarios: named systems", "demo": "scenarios of the demo, small enough to measure",
    "netlab": "scenarios for an emulated network inside this machine",
}  # fmt: skip


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    schema = commands.add_parser("schema", help="print the JSON schema of scenarios, for editors")
    schema.set_defaults(command=_schema)

    listing = commands.add_parser(
        "list", help="list the shipped scenarios, systems, studies, claims, models, clusters, frameworks and devices"
    )
    listing.set_defaults(command=_list)

    show = commands.add_parser(
        "show", help="print a shipped scenario, study, claim, model, cluster, framework or device, or published:ROW-ID"
    )
    show.add_argument("name", metavar="NAME", help="a name from 'scaleproof list', or published:ROW-ID")
    show.set_defaults(command=_show)


def _schema(options: argparse.Namespace) -> int:
    import json

    from scaleproof.simulator.scenario.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _list(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common import catalog

    parts = ("studies", "claims", "models", "clusters", "frameworks", "devices")
    for folder in (*catalog.SCENARIO_FOLDERS, *parts):
        print(_TITLES.get(folder, folder))
        for name in catalog.names(folder):
            print(f"  {name:<34} {catalog.summary(folder, name)}".rstrip())
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
