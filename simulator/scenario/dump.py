"""Writes a scenario as YAML that loads to an equal scenario, so that a run can be repeated.

Fields with their default values are left out; quantities are written exactly, in the unit that needs the fewest digits.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from scaleproof.simulator.cluster import Cluster, Device
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.frameworks.files import equal_to_shipped
from scaleproof.simulator.model import ModelSpec
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.parallelism.option_rules import decided_by_framework, has_effect, rules_of
from scaleproof.simulator.scenario.fields import Value, fields_of
from scaleproof.simulator.scenario.framework_choice import with_defaults
from scaleproof.simulator.scenario.read import load_cluster, load_device, load_model
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Training

FILE: Final = "scenario.yaml"
_WIDTH: Final = 120
# wider than any part
_ONE_LINE: Final = 10_000


def dump(scenario: Scenario, by_name: bool = False) -> str:
    """YAML that loads to an equal scenario.

    by_name: for readers: models, clusters and devices that equal shipped ones are given by name, and strategy fields as the
    framework decides them are left out; else they are written out, so that the text does not depend on shipped files. Shipped
    frameworks are always given by name, which stands for a version.
    """
    # the number of used devices of nodes that was chosen for the job is chosen anew
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.unplaced})
    plain = {"name": scenario.name, **plain_spec(scenario)}
    plain["strategy"] = _strategy(scenario, is_complete=not by_name)
    plain["framework"] = _framework(scenario)
    if by_name:
        _name_parts(plain, scenario)
    return written(plain)


def dump_device(device: Device) -> str:
    """YAML of a device that loads to an equal one."""
    return written({"description": device.description, **plain_spec(device)} if device.description else plain_spec(device))


def dump_part(scenario: Scenario, part: str) -> str:
    """One line of YAML for 'strategy' or another part: fields that differ from their defaults, which those of a strategy may
    have from the framework. A strategy's options without effect are left out."""
    if part == "strategy":
        strategy, given = type(scenario.strategy), scenario.option_values
        idle = {
            strategy.model_fields[name].alias or name for name in rules_of(strategy) if not has_effect(strategy, name, given)
        }
        plain = {name: value for name, value in _strategy(scenario).items() if name not in idle}
    else:
        plain = plain_spec(getattr(scenario, part))
    return f"{part}: {written(plain, default_flow_style=True, width=_ONE_LINE).rstrip()}"


def dump_framework(scenario: Scenario) -> str:
    """One line of YAML for the framework: its name if an equal one is shipped, else its fields."""
    framework = _framework(scenario)
    if isinstance(framework, str):
        return f"framework: {framework}"
    return f"framework: {written(framework, default_flow_style=True, width=_ONE_LINE).rstrip()}"


def _framework(scenario: Scenario) -> Any:
    return scenario.framework.name if equal_to_shipped(scenario.framework) else plain_spec(scenario.framework, ("name",))


def written(plain: Mapping[str, Any], *, default_flow_style: bool | None = None, width: int = _WIDTH) -> str:
    """Plain data as readable YAML; lists and mappings of scalars take one line. Arguments: see PyYAML's `dump`."""
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": width}
    text: str = yaml.dump(plain, Dumper=_Dumper, default_flow_style=default_flow_style, **style)
    return text


def keep(scenario: Scenario, folder: Path) -> None:
    """Writes the scenario into the folder of its runs. Raises OSError if that fails."""
    write_atomically(folder / FILE, dump(scenario).encode())


def plain_spec(part: Spec, always: Collection[str] = ()) -> dict[str, Any]:
    """The kind of a part, its fields that differ from their defaults, and those in `always`, as plain data. What a framework
    decides on the training is left to it."""
    left = set(decided_by_framework(Training)) - part.model_fields_set if isinstance(part, Training) else set()
    defaults = {
        info.alias or name: info.get_default(call_default_factory=True, validated_data={})
        for name, info in type(part).model_fields.items()
    }
    return {
        name: _plain_value(value)
        for name, value in fields_of(Value(part, None))
        if name not in left and (name in ("kind", *always) or value.value != defaults[name])
    }


def _strategy(scenario: Scenario, is_complete: bool = False) -> dict[str, Any]:
    """The fields of the strategy: microbatches by their size if that is given, otherwise by their number.

    is_complete: whether fields as the framework would decide them are written too.
    """
    fields = type(scenario.strategy).model_fields
    names = {name: fields[name].alias or name for name in decided_by_framework(type(scenario.strategy))}
    plain = plain_spec(scenario.strategy, names.values())
    if plain.get("micro_batch_size") is not None:
        plain.pop("microbatches", None)
    left = set() if is_complete else {names[name] for name in _left_to_framework(scenario)}
    return {name: value for name, value in plain.items() if name not in left}


def _left_to_framework(scenario: Scenario) -> Collection[str]:
    """Names of the strategy fields that have the values which the framework decides on if the others are given."""
    own = scenario.strategy
    fields, names = type(own).model_fields, decided_by_framework(type(own))
    left = list(names)
    while True:
        free = own.model_copy(update={name: fields[name].default for name in left})
        object.__setattr__(free, "__pydantic_fields_set__", own.model_fields_set.union(names) - set(left))
        decided = with_defaults(free, scenario.framework, scenario.training.zero, scenario.training.precision)
        other = next((name for name in left if getattr(own, name) != getattr(decided, name)), None)
        if other is None:
            return left
        # one after the other, since what is given may decide on the next one
        left.remove(other)


def _plain_value(value_and_unit: Value) -> Any:
    value, unit = value_and_unit
    if isinstance(value, Recompute):
        return value.shorthand
    if isinstance(value, Spec):
        return plain_spec(value)
    if isinstance(value, Mapping):
        return {str(key): _plain_value(Value(inner, unit)) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain_value(Value(inner, unit)) for inner in value]
    return unit.exactly(value) if isinstance(value, float) and unit is not None else value


def _name_parts(plain: dict[str, Any], scenario: Scenario) -> None:
    """Replaces parts that equal shipped ones by their names."""
    for part, spec in (("model", scenario.model), ("cluster", scenario.cluster)):
        if spec.name in catalog.names(catalog.PARTS[part]) and _shipped(part, spec.name) == spec:
            plain[part] = spec.name
    if isinstance(plain["cluster"], dict):
        device = scenario.cluster.device
        plain["cluster"]["device"] = next((name for name, one in _devices() if one == device), plain["cluster"]["device"])


def _shipped(part: str, name: str) -> ModelSpec | Cluster:
    if part == "model":
        return load_model(name)
    cluster = load_cluster(catalog.find_part(part, name))
    return cluster.model_copy(update={"name": cluster.name or name})


@functools.cache
def _devices() -> tuple[tuple[str, Device], ...]:
    """The shipped devices with their names."""
    paths = {name: catalog.find_part("device", name) for name in catalog.names("devices")}
    return tuple((name, load_device(path)) for name, path in paths.items())


class _Dumper(yaml.SafeDumper):
    """Writes paragraphs in folded style, and other texts of several lines as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represents a paragraph that ends in a newline, as read from `source: >`, in folded style, and tables line by line."""
    is_paragraph = text.endswith("\n") and text == " ".join(text.split()) + "\n"
    style = ">" if is_paragraph else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    """Represents a list of scalars on one line."""
    is_flat = not any(isinstance(item, list | dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True if is_flat else None)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
