"""The commands show and schema: shipped files, and the JSON schema of scenarios."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_json


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    show = Command(commands, "show", _show)
    show.add("NAME", "a name from 'scaleproof list', published:ROW-ID, or from:FILE (configurations of training software)")
    Command(commands, "schema", _schema)


def _schema(options: argparse.Namespace) -> int:
    from scaleproof.simulator.scenario.schema import json_schema

    return print_json(json_schema())


def _show(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.common.catalog import PUBLISHED
    from scaleproof.simulator.scenario import config_files

    if options.name.startswith(config_files.PREFIX):
        from scaleproof.commands.text.config_files import describe_config_files
        from scaleproof.simulator.scenario import dump

        paths = config_files.paths_of(options.name)
        files = config_files.read(paths)
        text = describe_config_files(paths, files.lines)
        sys.stdout.write("".join(f"# {line}\n" for line in text.splitlines()) + dump.written(files.located.data))
        return 0
    if options.name.startswith(PUBLISHED):
        from scaleproof.simulator.published.runs import text_of

        sys.stdout.write(text_of(options.name))
        return 0
    sys.stdout.write(catalog.find_anything(options.name).read_text(encoding="utf-8"))
    return 0
