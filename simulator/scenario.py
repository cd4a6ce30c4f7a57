"""Scenario: what a user asks about. One schema for both sides: predicted and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args

import yaml
from pydantic import Field, PositiveFloat, ValidationError, field_validator, model_validator

from simulator import library, yamlfile
from simulator.cluster import Cluster
from simulator.cluster.device import Optimizer, Precision
from simulator.errors import FieldError, NotFoundError, ScenarioError
from simulator.model import AnyModel
from simulator.spec import Count, Spec, Width
from simulator.strategy import AnyStrategy
from simulator.unevenness import EVEN, Unevenness
from simulator.yamlfile import Located

_S = TypeVar("_S", bound=Spec)


class Batch(Spec):
    """Samples per step: of all workers together, or of each."""

    total: Width | None = None
    per_worker: Width | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.total is None) == (self.per_worker is None):
            raise ValueError("give either total or per_worker, not both")
        return self


class Training(Spec):
    """How the model is trained; the same on both sides."""

    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    learning_rate: PositiveFloat = 0.01
    seed: int = Field(0, ge=0, lt=2**31)
    data: str | None = Field(None, description="a text file whose bytes are the tokens; random data from the seed if absent")
    warmup_steps: int = Field(3, ge=0, le=1_000_000, description="steps run before the measured ones")


class _ModelFile(Spec):
    model: AnyModel


class Scenario(Spec):
    """Model + cluster + strategy + batch + steps."""

    name: str = ""
    description: str = ""
    model: Annotated[AnyModel, Field(description="inline, or the name or path of a model file")]
    cluster: Annotated[Cluster, Field(description="inline, or the name or path of a cluster file")]
    strategy: AnyStrategy
    batch: Batch
    steps: Count = 20
    training: Training = Training()
    unevenness: Unevenness = EVEN

    @field_validator("name")
    @classmethod
    def _name_is_no_path(cls, name: str) -> str:
        """Results are kept in a folder of that name, which must not lead out of theirs."""
        if name in (".", "..") or any(character in name for character in "/\\\0") or len(name.encode()) > 200:
            raise ValueError(f"{name[:40]!r} cannot name a folder; give up to 200 bytes without slashes")
        return name

    @field_validator("cluster", mode="wrap")
    @classmethod
    def _place_in_cluster(cls, value: Any, validate: Callable[[Any], Cluster]) -> Cluster:
        """What a cluster says of its fields, said of the scenario's."""
        try:
            return validate(value)
        except FieldError as error:
            raise FieldError(("cluster", *error.field), error.message) from None

    @property
    def total_samples(self) -> int:
        """Samples that one step trains on, over all workers."""
        return self.batch.total or (self.batch.per_worker or 1) * self.strategy.workers

    @property
    def samples_per_worker(self) -> int:
        return self.total_samples // self.strategy.workers

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        """Rules between parts. FieldError passes through pydantic, and `load` adds the place."""
        workers = self.strategy.workers
        if self.total_samples % workers:
            nearest = max(1, round(self.total_samples / workers)) * workers
            message = f"{workers} workers do not divide {self.total_samples} samples; give a multiple such as {nearest}"
            raise FieldError(("batch",), message)
        self.strategy.check(self.model.build_layers(), self.samples_per_worker)
        self._devices_suffice()
        self._ranks_exist()
        if self.training.precision not in self.cluster.device.peak_flops:
            known = ", ".join(sorted(self.cluster.device.peak_flops))
            message = f"{self.cluster.device.name} has no peak rate for {self.training.precision}; use one of {known}"
            raise FieldError(("training", "precision"), message)
        return self

    def _ranks_exist(self) -> None:
        for field, ranks in self.unevenness.named_by_field():
            if max(ranks) >= self.strategy.ranks:
                message = f"there is no rank {max(ranks)}; they are numbered 0 to {self.strategy.ranks - 1}"
                raise FieldError(("unevenness", *field), message)

    def _devices_suffice(self) -> None:
        cluster, needed = self.cluster, self.strategy.workers * self.strategy.stages
        if needed > cluster.devices:
            nodes = -(-needed // cluster.node.devices)
            message = (
                f"{needed} ranks for {cluster.devices} devices ({cluster.nodes} nodes × {cluster.node.devices}); "
                f"give at most {cluster.devices}, or set cluster.nodes={nodes}"
            )
            raise FieldError(("strategy",), message)
        if (nodes := self.strategy.nodes_needed(cluster)) > cluster.nodes:
            message = f"workers and dedicated servers need {nodes} nodes, the cluster has {cluster.nodes}"
            raise FieldError(("strategy", "servers"), f"{message}; set cluster.nodes={nodes}, or placement: colocated")
        if cluster.nodes > 1 and cluster.network is None:
            raise FieldError(("cluster", "network"), "several nodes and no network between them; give bandwidth and latency")
        if cluster.node.devices > 1 and cluster.node.link is None:
            message = "several devices and no link between them; give bandwidth and latency"
            raise FieldError(("cluster", "node", "link"), message)


def load(reference: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a file, or of a name that ships, with `key.path=value` overrides applied.

    Raises NotFoundError, or ScenarioError with every problem as `file:line:column: field: what; what to do`.
    """
    path = library.find_scenario(str(reference))
    located = yamlfile.read(path)
    return build(located, path, overrides)


def build(located: Located, path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Validates YAML that was read from `path`: resolves named parts, applies overrides. Raises ScenarioError."""
    if not isinstance(located.data, dict):
        raise ScenarioError([f"{located.place(())}: a scenario is a mapping with model, cluster, strategy and batch"])
    _resolve_parts(located, path.parent)
    for override in overrides:
        _apply(located, override)
    _expand_shorthand(located)
    located.data.setdefault("name", path.stem)
    return _validated(Scenario, located)


def load_cluster(path: Path) -> Cluster:
    """A cluster file on its own. Raises NotFoundError or ScenarioError."""
    return _validated(Cluster, yamlfile.read(path))


def load_model(path: Path) -> AnyModel:
    """A model file on its own. Raises NotFoundError or ScenarioError."""
    located = yamlfile.read(path)
    if isinstance(located.data, dict):
        located.data.setdefault("name", path.stem)
    return _validated(_ModelFile, Located({"model": located.data}, {("model", *k): v for k, v in located.places.items()})).model


def _validated(kind: type[_S], located: Located) -> _S:
    try:
        return kind.model_validate(located.data)
    except FieldError as error:
        raise ScenarioError([f"{located.place(error.field)}: {error}"]) from None
    except ValidationError as error:
        raise ScenarioError([_problem(located, detail) for detail in error.errors()]) from None


def _resolve_parts(located: Located, folder: Path) -> None:
    for part in library.PARTS:
        _resolve(located, part, folder)


def _resolve(located: Located, part: str, folder: Path) -> None:
    """Replaces a model or cluster given by name or path with what its file says."""
    reference = located.data.get(part)
    if not isinstance(reference, str):
        return
    try:
        path = library.find_part(part, reference, folder)
    except NotFoundError as error:
        raise ScenarioError([f"{located.place((part,))}: {part}: {error}"]) from None
    found = yamlfile.read(path)
    if isinstance(found.data, dict):
        found.data.setdefault("name", path.stem)
    located.graft((part,), found)


def _apply(located: Located, override: str) -> None:
    """Applies one `--set key.path=value`; the value is YAML, and paths in it start from the working folder."""
    key, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals or not key:
        raise ScenarioError([f"{where}: expected field=value, such as strategy.workers=8"])
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ScenarioError([f"{where}: {text!r} is not a value"]) from None
    path = tuple(key.split("."))
    _expand_shorthand(located)
    parent = located.data
    for name in path[:-1]:
        parent = parent.setdefault(name, {}) if isinstance(parent, dict) else None
    if not isinstance(parent, dict):
        raise ScenarioError([f"{where}: {'.'.join(path[:-1])} has no fields"])
    parent[path[-1]] = value
    for old in [p for p in located.places if p[: len(path)] == path]:
        del located.places[old]
    located.places[path] = where
    if path == ("batch", "total"):
        parent.pop("per_worker", None)
    if path == ("batch", "per_worker"):
        parent.pop("total", None)
    if len(path) == 1 and path[0] in library.PARTS:
        _resolve(located, str(path[0]), Path())


def _expand_shorthand(located: Located) -> None:
    """`batch: 256` means `{total: 256}`, `strategy: ring_allreduce` means `{kind: ring_allreduce}`."""
    for key, inner, kind in (("batch", "total", int), ("strategy", "kind", str)):
        value = located.data.get(key)
        if isinstance(value, kind) and not isinstance(value, bool):
            located.data[key] = {inner: value}


_MESSAGES: dict[str, str] = {
    "missing": "missing; add it",
    "greater_than": "must be greater than {gt}, got {input}",
    "greater_than_equal": "must be at least {ge}, got {input}",
    "less_than_equal": "must be at most {le}, got {input}",
    "less_than": "must be less than {lt}, got {input}",
    "union_tag_not_found": "missing 'kind'; give one of {kinds}",
    "union_tag_invalid": "unknown kind {tag!r}; give one of {kinds}",
    "literal_error": "{input!r} is not known; give {expected}",
    "int_type": "expected a whole number, got {input!r}",
    "int_parsing": "expected a whole number, got {input!r}",
    "int_from_float": "expected a whole number, got {input!r}",
    "model_type": "expected a mapping of fields, got {input!r}",
    "model_attributes_type": "expected a mapping of fields, got {input!r}",
}


def _problem(located: Located, detail: Any) -> str:
    """One pydantic error as `place: field: what; what to do`."""
    path = tuple(_without_tags(located.data, detail["loc"]))
    is_kind = detail["type"] == "union_tag_invalid"
    place, field = located.place((*path, "kind") if is_kind else path), ".".join(map(str, path)) or "scenario"
    if detail["type"] == "extra_forbidden":
        return f"{place}: {field}: unknown key; {_suggestion(located, path)}"
    if detail["type"] == "value_error":
        return f"{place}: {field}: {detail['ctx']['error']}"
    template = _MESSAGES.get(detail["type"])
    if template is None:
        return f"{place}: {field}: {detail['msg']}"
    context = {key: value for key, value in detail.get("ctx", {}).items() if key != "input"}
    context |= {"input": _short(detail["input"]), "kinds": ", ".join(_kinds_at(path))}
    return f"{place}: {field}: {template.format(**context)}"


def _kinds_at(path: tuple[str | int, ...]) -> list[str]:
    """What `kind` may be in the part at `path`."""
    part = Scenario.model_fields.get(str(path[0])) if path else None
    return [
        spec.model_fields["kind"].default
        for spec in _specs_in(part.annotation if part else None)
        if "kind" in spec.model_fields
    ]


def _short(value: object) -> object:
    return value if not isinstance(value, str | list | dict) or len(str(value)) < 60 else str(value)[:57] + "..."


def _without_tags(data: Any, loc: Sequence[str | int]) -> list[str | int]:
    """Drops the union tags that pydantic puts into a location ('strategy', 'pipeline', 'stages')."""
    path: list[str | int] = []
    for i, key in enumerate(loc):
        is_tag = isinstance(data, dict) and data.get("kind") == key and i > 0 and (key not in data)
        if is_tag:
            continue
        path.append(key)
        if isinstance(data, dict):
            data = data.get(str(key))
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            data = None
    return path


def _suggestion(located: Located, path: tuple[str | int, ...]) -> str:
    """Names the known keys beside an unknown one."""
    import difflib

    fields = _fields_at(located.data, path[:-1])
    close = difflib.get_close_matches(str(path[-1]), fields, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(fields)}"


def _fields_at(data: Any, path: Sequence[str | int]) -> list[str]:
    """YAML keys that the schema knows at `path`."""
    kind: Any = Scenario
    for key in path:
        data = data.get(key) if isinstance(data, dict) else data[int(key)] if isinstance(data, list) else None
        if isinstance(key, str) and isinstance(kind, type) and issubclass(kind, Spec):
            by_key = {field.alias or name: field for name, field in kind.model_fields.items()}
            kind = _spec_among(by_key[key].annotation, data) if key in by_key else None
    if not (isinstance(kind, type) and issubclass(kind, Spec)):
        return []
    return sorted(field.alias or name for name, field in kind.model_fields.items())


def _spec_among(annotation: Any, data: Any) -> Any:
    """The Spec class within an annotation; of several, the one whose `kind` the data names."""
    found = _specs_in(annotation)
    kind = data.get("kind") if isinstance(data, dict) else None
    named = [spec for spec in found if "kind" in spec.model_fields and spec.model_fields["kind"].default == kind]
    return (named or found or [None])[0]


def _specs_in(annotation: Any) -> list[Any]:
    """All Spec classes within an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [spec for argument in get_args(annotation) for spec in _specs_in(argument)]


def schema() -> dict[str, Any]:
    """JSON schema of a scenario file, shorthands included, for editors."""
    result = Scenario.model_json_schema(by_alias=True)
    fields = result["properties"]
    for part in library.PARTS:
        fields[part] = {"anyOf": [{"type": "string", "description": "name or path"}, _bare(fields[part])]}
    fields["batch"] = {"anyOf": [{"type": "integer", "minimum": 1}, _bare(fields["batch"])]}
    kinds = sorted(result["properties"]["strategy"]["discriminator"]["mapping"])
    fields["strategy"] = {"anyOf": [{"enum": kinds}, _bare(fields["strategy"])]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result, "title": "scaleproof scenario"}


def _bare(field: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in field.items() if key not in ("title", "description")}
