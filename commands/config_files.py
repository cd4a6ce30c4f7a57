"""The option --from: a scenario from configuration files of training software."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def reference(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    """The reference of the scenario that options name, and its overrides; says on stderr what became of keys of configuration
    files. Raises InputError."""
    from scaleproof.simulator.common.errors import InputError

    if not options.files and options.scenario is None:
        raise InputError("no scenario is given; give SCENARIO, or --from FILE with a configuration of training software")
    if not options.files:
        return options.scenario, options.overrides
    from scaleproof.commands.text.config_files import describe_config_files
    from scaleproof.simulator.scenario import config_files

    model = [f"model={options.scenario}"] if options.scenario else []
    overrides = [*model, *options.overrides]
    given = [one.partition("=")[2] for one in overrides if one.startswith("model=")]
    files = config_files.read(options.files, given[-1] if given else "")
    print(describe_config_files(options.files, files.lines), file=sys.stderr, end="\n\n", flush=True)
    return config_files.PREFIX + ",".join(options.files), overrides
