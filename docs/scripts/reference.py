"""Writes docs/reference/scenario.md and cli.md from the schema, aliases and parser: `python docs/scripts/reference.py`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scaleproof.commands.main import command_line
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.option_rules import rules_of
from scaleproof.simulator.scenario.aliases import FIELDS, VALUES
from scaleproof.simulator.scenario.schema import Scenario

REFERENCE: Final = Path(__file__).parents[1] / "reference"
_HEAD: Final = "<!-- written by `python docs/scripts/reference.py` -->\n"
_SCENARIO: Final = """\
# Scenario fields

```yaml
model: llama-2-7b
cluster: dgx-h100
strategy: {kind: fsdp, workers: 8}
batch: {per_worker: 2}
training: {precision: bf16, optimizer: adam}
```

Parts may be given inline, by the name of a shipped file or by the path of one, or as another one with changes:
`cluster: {base: dgx-h100, nodes: 16, network: {nics: 8 x 200 Gbit/s}}`. Quantities have units (`25 Gbit/s`, `5 us`,
`80 GiB`). `scaleproof schema` prints this schema as JSON, for editors."""
_NEEDS: Final = """\
## Options that need others

Options of a [strategy](strategies.md) that differ from their defaults without what they need are refused, or have no effect.
`zero` is that of `training`; `nodes` is the number of nodes of the ranks; gradients are averaged (`averages`) if several ranks
have the same parameters.

| options | need | otherwise |
|---|---|---|"""
_ENDS: Final = """\
Ctrl-C and SIGTERM end a command and the processes that it started. One line says what was interrupted and how it continues;
exit codes 130 and 143."""
_ABBREVIATIONS: Final = """\
## Abbreviations

In files and in `--set`, there in any order: `--set tp=8 --set strategy=fsdp` is a hybrid with ZeRO-3. Names may lack
punctuation: `llama3-70b`.

| write | for |
|---|---|"""
# Mappings that other pages of the reference describe, with the page.
_ELSEWHERE: Final = {"strategy": "strategies.md", "framework": "frameworks.md", "topology": "networks.md#links"}
# Mappings that only `calibrate` writes.
_CALIBRATED: Final = ("MeasuredCollective", "MeasuredLayer", "MeasuredOptimizer", "MeasuredStep")


def scenario_page(schema: dict[str, Any]) -> str:
    """The fields of a scenario, a table for each mapping, and the abbreviations."""
    definitions = schema["$defs"]
    names, sections = [*_references(schema["properties"])], []
    for name in names:
        definition = definitions[name]
        if name in _CALIBRATED:
            continue
        names += [new for new in dict.fromkeys(_references(definition.get("properties", {}))) if new not in names]
        sections.append(f"## {name}\n\n{_sentence(definition)}\n\n{_table(definition)}")
    return "\n\n".join([_HEAD + _SCENARIO, _table(schema), _abbreviations(), _needs(), *sections]) + "\n"


def _references(properties: dict[str, Any]) -> Iterator[str]:
    """Definitions that fields refer to, but for those that other pages describe."""
    for name, field in properties.items():
        if name not in _ELSEWHERE:
            own = {key: value for key, value in field.items() if key != "discriminator"}
            yield from re.findall(r"'#/\$defs/(\w+)'", str(own))


def _sentence(definition: dict[str, Any]) -> str:
    """The first sentence of a definition's description."""
    text = " ".join(definition.get("description", "").split("\n\n")[0].split())
    return re.split(r"(?<=\w\w\.) (?=[A-Z])", text)[0]


def _table(definition: dict[str, Any]) -> str:
    """The fields of a mapping."""
    rows = [
        f"| `{name}` | {_values(name, field)} | {_default(field, name in definition.get('required', ()))} "
        f"| {field.get('description', '')} |"
        for name, field in definition["properties"].items()
        if field.get("default") != ""
    ]
    return "\n".join(["| field | value | default | description |", "|---|---|---|---|", *rows])


def _values(name: str, field: dict[str, Any]) -> str:
    """What a field accepts: a type, the values of an enumeration, or links to mappings."""
    if name in _ELSEWHERE:
        return f"[{name}]({_ELSEWHERE[name]})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "$ref" in field:
        reference = field["$ref"].rpartition("/")[2]
        return reference if reference in _CALIBRATED else f"[{reference}](#{reference.lower()})"
    if choices := field.get("anyOf", field.get("oneOf")):
        parts = [_values("", choice) for choice in choices if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(part for part in parts if part))
    if field.get("type") == "array":
        return f"list of {_values('', field.get('items', {}))}" if field.get("items") else "list"
    kind = {"integer": "whole number", "boolean": "`true`, `false`", "string": "text", "object": "mapping"}
    types = field.get("type", [])
    return " or ".join(kind.get(one, one) for one in ([types] if isinstance(types, str) else types) if one != "null")


def _default(field: dict[str, Any], is_required: bool) -> str:
    """A field's default, as YAML has it; mappings have their own."""
    value = field.get("default")
    if is_required:
        return "required"
    if value is None or value == "" or value == [] or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _abbreviations() -> str:
    """Fields and values that may be abbreviated."""
    rows = [f"| `{'.'.join(short)}` | `{'.'.join(full)}` |" for short, full in FIELDS.items()]
    for path, meanings in VALUES.items():
        field = ".".join(map(str, path))
        rows += [f"| `{field}: {short}` | `{full}` |" for short, full in meanings.items()]
    rows += ["| `strategy.kind: ddp` | `data_parallel` (`hybrid` with other degrees), `training.zero: 0` |"]
    rows += ["| `strategy.kind: fsdp` | the same with `training.zero: 3` |"]
    rows += ["| `training.gradient_checkpointing: true`, `activation_checkpointing: true` | `training.recompute: full` |"]
    rows += [
        "| `training.recompute_granularity: full`, `recompute_method: uniform`, `recompute_num_layers: n` | `{group: n}` |"
    ]
    rows += ["| ... with `recompute_method: block` | `{layers: n}` |"]
    rows += [
        "| `training.recompute_granularity: selective`, `recompute_modules: [...]` | `{modules: [...]}`, or `[core_attn]` |"
    ]
    rows += ["| `training.activation_checkpoint: {mode: selective, selective_ac_option: op}` | `{products: every_second}` |"]
    rows += ["| ... with `selective_ac_option: n` | `{every: n}` |"]
    return "\n".join([_ABBREVIATIONS, *rows])


def _needs() -> str:
    """The rules of a strategy's options, each with the options that it is of."""
    options: dict[tuple[str, str], list[str]] = {}
    for name, rules in rules_of(Hybrid).items():
        for rule in rules:
            outcome = "no effect" if rule.reason is None else "refused"
            options.setdefault((rule.needs, outcome), []).append(f"`{Hybrid.model_fields[name].alias or name}`")
    rows = [f"| {', '.join(names)} | `{needs}` | {outcome} |" for (needs, outcome), names in options.items()]
    return "\n".join([_NEEDS, *rows])


def cli_page() -> str:
    """All commands, with a table of arguments for each."""
    lead = "# Command line\n\n```text\n" + command_line().format_help().rstrip() + f"\n```\n\n{_ENDS}"
    sections = [_section(["scaleproof", name], command) for name, command in _subcommands(command_line())]
    return "\n\n".join([_HEAD + lead, *sections]) + "\n"


def _subcommands(of: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    """Commands of a parser by name."""
    return [pair for action in of._actions if isinstance(action, argparse._SubParsersAction) for pair in action.choices.items()]


def _section(words: list[str], command: argparse.ArgumentParser) -> str:
    """A command's purpose and arguments, and those of its own commands."""
    actions = [a for a in command._actions if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)]
    rows = [f"| {_written(action)} | {_help(action)} |" for action in actions]
    table = ["", "| argument | |", "|---|---|", *rows] if rows else []
    text = "\n".join([f"## {' '.join(words)}", "", " ".join((command.description or "").split()), *table])
    return "\n\n".join([text, *(_section([*words, name], below) for name, below in _subcommands(command))])


def _written(action: argparse.Action) -> str:
    """An argument as it is written, with the placeholder of its value."""
    if not action.option_strings:
        name = action.metavar or action.dest.upper()
        return f"`{name if isinstance(name, str) else ' '.join(name)}{' …' if action.nargs in ('*', '+') else ''}`"
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if action.choices and not action.metavar:
        value = "|".join(map(str, action.choices))
    value = value if isinstance(value, str) else " ".join(value)
    return f"`{action.option_strings[-1]}{' ' + value if value and action.nargs != 0 else ''}`".replace("|", "\\|")


def _help(action: argparse.Action) -> str:
    """What an argument does, in one line."""
    return " ".join((action.help or "").replace("%%", "%").split()).replace("|", "\\|")


def pages() -> dict[Path, str]:
    """The generated pages as they are now."""
    return {REFERENCE / "scenario.md": scenario_page(Scenario.model_json_schema()), REFERENCE / "cli.md": cli_page()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path)
