"""Loads a scenario from a file, by the name of a shipped one, or from a row of a table of published measurements, and applies
`--set` overrides."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.common.part_reference import forget_void, resolve_file
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario import aliases, fitted_cluster
from scaleproof.simulator.scenario.captured_script import around_capture, fit_to_cluster, is_capture
from scaleproof.simulator.scenario.fields import GPUS, field_at
from scaleproof.simulator.scenario.gpus import read_with_gpus
from scaleproof.simulator.scenario.published.tables import PUBLISHED
from scaleproof.simulator.scenario.read import resolve_part, resolve_parts, validated
from scaleproof.simulator.scenario.schema import Scenario

# A scenario by its name, its path, `published:ROW-ID`, its model, or the fields of a YAML file; and overrides such as
# {"strategy.workers": 8} or ["strategy.workers=8"]. The override gpus=N is applied last (`read_with_gpus`).
Reference = str | Path | Mapping[str, Any]
Overrides = Mapping[str, Any] | Sequence[str] | str
# parts in which fields that are given without their part are searched, in this order
_PARTS: Final = ("strategy", "training", "batch", "model", "cluster", "cluster.node", "cluster.device", "cluster.network")
_EXAMPLE: Final = "{'strategy.workers': 8}"
# parts that may be given by name, by path or as another one with changes
_NAMED: Final = (*((part,) for part in catalog.PARTS), ("cluster", "device"))

# Fields of a scenario that is given by its model alone; overrides must add those of `_NEEDED`, here with an example.
_AROUND_A_MODEL: Final = {"strategy": {"kind": "hybrid"}, "training": {"precision": "bf16", "optimizer": "adam"}}
_NEEDED: Final = {"cluster": "dgx-h100", "batch": "512"}

# By field, the field next to it that an override of it replaces.
_ALTERNATIVES: Final = {
    ("batch", "total"): "per_worker",
    ("batch", "per_worker"): "total",
    ("strategy", "microbatches"): "micro_batch_size",
    ("strategy", "micro_batch_size"): "microbatches",
}


def load(reference: Reference, overrides: Overrides = ()) -> Scenario:
    """Loads a scenario with overrides.

    reference: the name of a shipped scenario, a path, `published:ROW-ID`, the fields of a scenario as in YAML, or a capture
    file, which has the cluster that it was captured for; or a model
    (`hf:config.json`, `python:module:function`, the name of a shipped one), trained in bf16 with Adam, for which the overrides
    give cluster and batch. overrides: a mapping of fields such as `{"strategy.workers": 8}`, or texts such as
    `"strategy.workers=8"`.

    Raises NotFoundError, ScenarioError with every problem as `file:line:column: field: what; what to do`, or InputError for an
    argument of another type.
    """
    changes = override_texts(overrides)
    if isinstance(reference, Mapping):
        return build(Located(copy.deepcopy(dict(reference)), {(): "scenario"}), Path("scenario"), changes)
    name = reference_text(reference)
    if name.startswith(PUBLISHED):
        from scaleproof.simulator.scenario.published.yaml_text import text_of

        return build(yaml_file.parse(text_of(name), name), Path(name), changes)
    if is_capture(name):
        return build(around_capture(name, changes), Path(name), changes)
    if catalog.is_model(name):
        return build(_around_model(name, changes), Path(name), changes)
    path = catalog.find_scenario(name)
    located = yaml_file.read(path)
    return build(located, path, changes)


def _around_model(reference: str, overrides: Sequence[str]) -> Located:
    """The fields of a scenario that trains a model. Raises ScenarioError if the overrides lack some that are needed."""
    given = {aliases.canonical(tuple(override.partition("=")[0].split(".")))[0] for override in overrides}
    if missing := [f"--set {field}={example}" for field, example in _NEEDED.items() if field not in given]:
        message = f"a model without a scenario needs {' and '.join(_NEEDED)}; add {' '.join(missing)}, for example"
        raise ScenarioError([f"{reference}: {message}"])
    located = Located({"model": reference, **copy.deepcopy(_AROUND_A_MODEL)}, {(): reference})
    resolve_part(located, "model", Path())
    located.data["name"] = located.data["model"]["name"]
    return located


def reference_text(reference: object, kind: str = "scenario") -> str:
    """A name or path as text. Raises InputError for another type. kind: of what it is the name."""
    if isinstance(reference, str | Path):
        return str(reference)
    raise InputError(f"expected the name of a {kind}, a path, or a mapping with its fields; got {type(reference).__name__}")


def override_texts(overrides: Overrides) -> Sequence[str]:
    """Overrides as for `--set`. Raises InputError for another type."""
    if isinstance(overrides, Mapping):
        given = {field: str(value) if isinstance(value, Path) else value for field, value in overrides.items()}
        return [f"{field}={yaml_file.on_one_line(value)}" for field, value in given.items()]
    if not isinstance(overrides, Sequence):
        raise InputError(f"overrides are a mapping such as {_EXAMPLE} or texts; got {type(overrides).__name__}")
    texts = [overrides] if isinstance(overrides, str) else list(overrides)
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise InputError(f"overrides are a mapping such as {_EXAMPLE} or texts; got {type(wrong[0]).__name__}")
    return texts


def build(located: Located, path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Builds a scenario from YAML that was read from `path`: resolves parts given by name, applies overrides, validates.

    Raises ScenarioError.
    """
    _check_is_scenario(located, path)
    problems, wrong = resolve_parts(located, path.parent)
    fitted_cluster.merge(located)
    gpus: int | None = None
    fixed: set[str] = set()
    for override in overrides:
        name = override.partition("=")[0]
        field = aliases.canonical(tuple(name.split(".")))
        if name == GPUS:
            gpus = _whole(override)
        elif field[0] not in wrong:
            try:
                fixed.add(_apply(located, override, fixed))
            except ScenarioError as error:
                problems += error.problems
                wrong.add(field[0])
    try:
        _expand_shorthand(located)
    except ScenarioError as error:
        raise ScenarioError([*problems, *error.problems]) from None
    fitted_cluster.remove(located)
    located.data.setdefault("name", path.stem)
    if not problems:
        fit_to_cluster(located, fixed)
    if gpus is None or problems:
        return validated(Scenario, located, problems, wrong)
    return read_with_gpus(located, gpus, fixed)


def cluster_with(path: Path, overrides: Sequence[str]) -> Cluster:
    """Loads a cluster file with some fields changed, such as 'cluster.network.latency=2 us'.

    Raises NotFoundError or ScenarioError.
    """
    located = yaml_file.read(path)
    resolve_file(located, "cluster", path.parent)
    whole = Located({"cluster": located.data}, {("cluster", *place): text for place, text in located.places.items()})
    for override in overrides:
        if not override.startswith("cluster."):
            raise ScenarioError([f"--set {override}: expected a field of the cluster, such as cluster.network.latency=2us"])
        _apply(whole, override, ())
    places = {place[1:]: text for place, text in whole.places.items() if place[:1] == ("cluster",)}
    return validated(Cluster, Located(whole.data["cluster"], places))


def _check_is_scenario(located: Located, path: Path) -> None:
    """Raises ScenarioError for YAML of another kind."""
    if not isinstance(located.data, dict):
        raise ScenarioError([f"{located.place(())}: a scenario must be a mapping with model, cluster, strategy and batch"])
    if {"model_type", "architectures"} & set(located.data):
        message = f"this is a model's configuration, not a scenario; give it as hf:{path}"
        raise ScenarioError([f"{located.place(())}: {message}"])
    others = {"axes": ("study", f"sweep {path} --out DIR"), "claim": ("claim", f"claims {path}")}
    for key, (kind, command) in others.items():
        if key in located.data:
            raise ScenarioError([f"{located.place((key,))}: this is a {kind}, not a scenario; use 'scaleproof {command}'"])


def _whole(override: str) -> int:
    """The whole number of `gpus=64`. Raises InputError."""
    text = override.partition("=")[2].strip()
    if not text.isdecimal() or int(text) == 0:
        raise InputError(f"--set {override}: expected a whole number of GPUs, such as gpus=64")
    return int(text)


def _apply(located: Located, override: str, others: Collection[str]) -> str:
    """Applies one `--set key.path=value`, and returns the field. The value is YAML; paths in it are relative to the working
    folder. others: fields that overrides before it have set."""
    key, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals or not key:
        raise ScenarioError([f"{where}: expected field=value, such as strategy.workers=8"])
    try:
        # empty text is null
        value = yaml_file.parse(text, where).data if text.strip() else None
    except ScenarioError:
        raise ScenarioError([f"{where}: {text!r} is not a valid YAML value"]) from None
    path = aliases.canonical(tuple(key.split(".")))
    if path[0] not in Scenario.model_fields:
        raise ScenarioError([f"{where}: {_unknown_field(path)}"])
    # a base has already been replaced by its content, so that another base replaces the part
    path = path[:-1] if path[-1] == "base" and path[:-1] in _NAMED else path
    _expand_shorthand(located)
    if path[0] == "framework" and len(path) > 1 and "framework" not in located.data:
        message = "the scenario names no framework to change; set framework=NAME first, such as framework=megatron-core-0.12"
        raise ScenarioError([f"{where}: {message}"])
    if path in (("strategy",), ("strategy", "kind")):
        path = _make_room(located, path, value, others)
    parent = located.data
    for depth, name in enumerate(path[:-1], start=1):
        if isinstance(parent, dict) and name not in parent:
            located.places[path[:depth]] = where
        parent = parent.setdefault(name, {}) if isinstance(parent, dict) else None
    if not isinstance(parent, dict):
        raise ScenarioError([f"{where}: {'.'.join(path[:-1])} has no fields"])
    parent[path[-1]] = value
    for old in [p for p in located.places if p[: len(path)] == path]:
        del located.places[old]
    located.places[path] = where
    if path in _ALTERNATIVES:
        parent.pop(_ALTERNATIVES[path], None)
    if path[0] in catalog.PARTS:
        if len(path) > 1:
            forget_void(located.data[path[0]], path)
        resolve_part(located, path[0], Path())
    if path in (("framework",), ("cluster",)):
        fitted_cluster.merge(located)
    return ".".join(path)


def _make_room(located: Located, path: tuple[str, ...], value: Any, others: Collection[str]) -> tuple[str, ...]:
    """Removes what an override of the strategy or of its kind replaces, and returns the field that it sets.

    A strategy by its kind alone keeps the fields that other overrides set, in whatever order they are given. FSDP and DDP
    replace the stage of ZeRO, unless another override sets it.
    """
    strategy, training = located.data.get("strategy"), located.data.get("training")
    if aliases.implies_sharding(value) and isinstance(training, dict) and not {"training", "training.zero"} & set(others):
        training.pop("zero", None)
    if path != ("strategy",) or not isinstance(value, str):
        return path
    own = {field.split(".")[1] for field in others if field.startswith("strategy.")}
    fields = strategy if isinstance(strategy, dict) else {}
    located.data["strategy"] = {name: field for name, field in fields.items() if name in own}
    located.places["strategy",] = f"--set strategy={value}"
    return ("strategy", "kind")


def _unknown_field(path: tuple[str, ...]) -> str:
    """'a scenario has no field ...', with the fields that may be meant."""
    name = ".".join(path)
    for part in _PARTS:
        try:
            field_at(f"{part}.{name}")
        except InputError:
            continue
        return f"a scenario has no field {name!r}; did you mean '{part}.{name}'?"
    close = catalog.nearest(path[0], sorted(Scenario.model_fields))
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(Scenario.model_fields)}"
    return f"a scenario has no field {path[0]!r}; {hint}"


def _expand_shorthand(located: Located) -> None:
    """`batch: 256` means `{total: 256}`, `strategy: data_parallel` means `{kind: data_parallel}`."""
    for key, inner, kinds in (("batch", "total", (int, float, str)), ("strategy", "kind", (str,))):
        value = located.data.get(key)
        if isinstance(value, kinds) and not isinstance(value, bool):
            located.data[key] = {inner: value}
    aliases.expand(located)
