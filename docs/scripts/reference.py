"""Writes docs/reference/scenario.md and cli.md from the schema, aliases and parser: `python docs/scripts/reference.py`."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
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
`80 GiB`). Defaults follow the values. `scaleproof schema` prints this schema as JSON, for editors, with what `calibrate` and
`import` write."""
# Number of fields of a mapping from which on those of another one with more fields refer to them.
_MANY: Final = 8
_NEEDS: Final = """\
## Options that need others

Options of a [strategy](strategies.md) that differ from their defaults without what they need are refused, or have no effect.
`zero` is that of `training`; `nodes` is the number of nodes of the ranks; gradients are averaged (`averages`) if several ranks
have the same parameters.

| options | need | otherwise |
|---|---|---|"""
_COMMANDS: Final = """\
# Command line

`scaleproof --help` lists the commands by purpose, `scaleproof COMMAND --help` describes one. In brackets are defaults.

Ctrl-C and SIGTERM end a command and the processes that it started. One line says what was interrupted and how it continues;
exit codes 130 and 143."""
_ABBREVIATIONS: Final = """\
## Abbreviations

In files and in `--set`, there in any order: `--set tp=8 --set strategy=fsdp` is a hybrid with ZeRO-3. Names may lack
punctuation: `llama3-70b`.

| write | for |
|---|---|"""
# Fields whose mappings other pages describe, with the page.
_ELSEWHERE: Final = {
    "strategy": "strategies.md", "framework": "frameworks.md", "network": "networks.md#links", "link": "networks.md#links",
    "unevenness": "../guides/stragglers.md#describe-perturbations", "input": "memory.md#input",
}  # fmt: skip
# Mappings that only `calibrate` and `import` write.
_WRITTEN: Final = (
    "Adjust", "AttentionRates", "MeasuredCollective", "MeasuredLayer", "MeasuredOptimizer", "MeasuredStep", "MixtureRates",
    "ProductRates", "SerialCosts",
)  # fmt: skip
# Starts of descriptions that say no more than that a field is a quantity.
_GENERIC: Final = re.compile(r"an? [\w ]+ with its unit, such as '")
_JSON: Final = re.compile(r"print the [\w ]+ as JSON(, in SI units)?")
_COMMON: Final = """\
## Arguments of several commands
"""
# Number of commands with the same argument and text from which on it is described once.
_SEVERAL: Final = 3


def scenario_page(schema: dict[str, Any]) -> str:
    """The fields of a scenario, those of each mapping, and the abbreviations."""
    definitions = schema["$defs"]
    names, sections = [*_references(schema["properties"])], []
    shapes: dict[str, set[tuple[str, str]]] = {}
    for name in names:
        definition = definitions[name]
        if name in _WRITTEN:
            continue
        names += [new for new in dict.fromkeys(_references(definition.get("properties", {}))) if new not in names]
        shape = {(field, _values(field, one)) for field, one in definition["properties"].items() if field != "kind"}
        contained = (other for other, own in shapes.items() if own == shape or (len(own) >= _MANY and own < shape))
        first = next(contained, name)
        shapes[name] = shape
        fields = _fields(definition) if first == name else _other_defaults(definition, first, definitions[first])
        sections.append(f"## {name}\n\n{_sentence(definition)}{_kind(definition)}\n\n{fields}")
    return "\n\n".join([_HEAD + _SCENARIO, _fields(schema), _abbreviations(), _needs(), *sections]) + "\n"


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


def _kind(definition: dict[str, Any]) -> str:
    """How a mapping is distinguished from others of its place, if it is."""
    kind = definition["properties"].get("kind", {}).get("const")
    return f" `kind: {kind}`." if kind else ""


def _fields(definition: dict[str, Any]) -> str:
    """A line for each field of a mapping, but for its kind; fields with the same values and description share one."""
    required = definition.get("required", ())
    fields = [
        (f"`{name}`", (_values_and_default(name, field, name in required), _description(field)))
        for name, field in definition["properties"].items()
        if field.get("default") != "" and not (name == "kind" and "const" in field)
    ]
    lines = []
    for (values, description), same in groupby(fields, key=itemgetter(1)):
        names = ", ".join(name for name, _ in same)
        lines.append(f"- {names}: {values}{'; ' if values and description else ''}{description}")
    return "\n".join(lines)


def _other_defaults(definition: dict[str, Any], like: str, other: dict[str, Any]) -> str:
    """The defaults of a mapping's fields that differ from those of another one, all of whose fields it has, and more fields."""
    fields, others = definition["properties"], other["properties"]
    changed = [
        f"`{name}: {_default(field, is_required=False).strip('`')}`"
        for name, field in fields.items()
        if name != "kind" and name in others and field.get("default") != others[name].get("default")
    ]
    defaults = f", but by default {', '.join(changed)}" if changed else ""
    more = {name: field for name, field in fields.items() if name not in others}
    added = f" In addition:\n\n{_fields(definition | {'properties': more})}" if more else ""
    return f"Fields as of [{like}](#{like.lower()}){defaults}.{added}"


def _description(field: dict[str, Any]) -> str:
    """What a field means, empty if its value says it."""
    text = str(field.get("description", ""))
    return "" if _GENERIC.match(text) else text


def _values_and_default(name: str, field: dict[str, Any], is_required: bool) -> str:
    """What a field accepts, with its default in brackets."""
    values, default = _values(name, field), _default(field, is_required)
    return f"{values} ({default})" if default else values


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
        return reference if reference in _WRITTEN else f"[{reference}](#{reference.lower()})"
    if choices := field.get("anyOf", field.get("oneOf")):
        parts = [_values("", choice) for choice in choices if choice.get("type") != "null"]
        return _quantity(" or ".join(dict.fromkeys(part for part in parts if part)))
    if field.get("type") == "array":
        return f"list of {_values('', field.get('items', {}))}" if field.get("items") else "list"
    kind = {"string": "text", "object": "mapping"}
    types = field.get("type", [])
    return _quantity(" or ".join(kind.get(one, one) for one in ([types] if isinstance(types, str) else types) if one != "null"))


def _quantity(values: str) -> str:
    """What a field accepts, where a number and a text with a unit are one thing."""
    return values.replace("text or number", "quantity").replace("number or text", "quantity")


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
    names: dict[str, list[str]] = {}
    for short, full in FIELDS.items():
        names.setdefault(".".join(full), []).append(f"`{'.'.join(short)}`")
    rows = [f"| {', '.join(short)} | `{full}` |" for full, short in names.items()]
    for path, meanings in VALUES.items():
        field = ".".join(map(str, path))
        rows += [f"| `{field}: {short}` | `{full}` |" for short, full in meanings.items()]
    rows += ["| `training.optimizer: adamw_8bit`, `paged_adamw_8bit`, `lion_8bit` | `adam`, `lion`; `training.state_bits: 8` |"]
    rows += ["| `training.adapters: lora`, `dora` | `{kind: lora, rank: 16}` |"]
    rows += ["| `training.adapters: qlora` | the same with `training.base_precision: nf4` |"]
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
    """All commands, with the arguments of each."""
    commands = [(["scaleproof", name], command) for name, command in _subcommands(command_line())]
    every = [row for _, command in commands for row in _rows(command)]
    common = sorted(row for row, count in Counter(every).items() if count >= _SEVERAL)
    sections = [_section(words, command, common) for words, command in commands]
    return "\n\n".join([_HEAD + _COMMANDS, "\n".join([_COMMON, *common]), *sections]) + "\n"


def _subcommands(of: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    """Commands of a parser by name."""
    return [pair for action in of._actions if isinstance(action, argparse._SubParsersAction) for pair in action.choices.items()]


def _rows(command: argparse.ArgumentParser) -> list[str]:
    """The arguments of a command and of its own commands, as items of a list."""
    below = [row for _, one in _subcommands(command) for row in _rows(one)]
    return [*map(_row, _arguments(command)), *below]


def _arguments(command: argparse.ArgumentParser) -> list[argparse.Action]:
    """A command's own arguments."""
    return [one for one in command._actions if not isinstance(one, argparse._HelpAction | argparse._SubParsersAction)]


def _row(action: argparse.Action) -> str:
    """An argument with what it does."""
    if _JSON.fullmatch(_help(action)):
        return "- `--json`: print the result as JSON, numbers in SI units"
    return f"- {_written(action)}: {_help(action)}"


def _section(words: list[str], command: argparse.ArgumentParser, common: Sequence[str]) -> str:
    """A command's purpose and arguments, and those of its own commands. common: those that are described once for all."""
    arguments = _arguments(command)
    rows = [row for row in map(_row, arguments) if row not in common]
    elsewhere = [_written(one) for one in arguments if _row(one) in common]
    own = ["", *rows] if rows else []
    also = (
        ["", f"{'Also ' if rows else ''}{', '.join(elsewhere)} ([above](#arguments-of-several-commands))."] if elsewhere else []
    )
    text = "\n".join([f"## {' '.join(words)}", "", " ".join((command.description or "").split()), *own, *also])
    return "\n\n".join([text, *(_section([*words, name], below, common) for name, below in _subcommands(command))])


def _written(action: argparse.Action) -> str:
    """An argument as it is written, with the placeholder of its value."""
    if not action.option_strings:
        name = action.metavar or action.dest.upper()
        return f"`{name if isinstance(name, str) else ' '.join(name)}{' …' if action.nargs in ('*', '+') else ''}`"
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if action.choices and not action.metavar:
        value = "|".join(map(str, action.choices))
    value = value if isinstance(value, str) else " ".join(value)
    return f"`{action.option_strings[-1]}{' ' + value if value and action.nargs != 0 else ''}`"


def _help(action: argparse.Action) -> str:
    """What an argument does, in one line."""
    return " ".join((action.help or "").replace("%%", "%").split())


def pages() -> dict[Path, str]:
    """The generated pages as they are now."""
    return {REFERENCE / "scenario.md": scenario_page(Scenario.model_json_schema()), REFERENCE / "cli.md": cli_page()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path)
