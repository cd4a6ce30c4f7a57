"""Reads configuration files of training software as the fields of one scenario, with what each key became."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.common.yaml_file import FieldPath, Located
from scaleproof.simulator.scenario.config_files.formats import FILE, LISTS, PARTS, Format, NotModelledError, converted, formats

# The prefix of configuration files in place of a scenario: from:axolotl.yml,ds_config.json.
PREFIX: Final = "from:"
_AUTO: Final = "auto"
_OFF: Final = "off, or as by default"
_NARROW: Final = ("bf16", "fp16")
# Words in names of models that say nothing of their shape.
_NO_SHAPE: Final = re.compile(
    r"(instruct|chat|base|it|hf|meta|pt|bnb|unsloth|awq|gptq|int4|[48]bit|fp16|bf16|\d+k|v\d+(\.\d+)*|\d{4}|lora|qlora|dora)"
)
# Frameworks of unsharded training by fused kernels.
_BY_KERNELS: Final = {"liger": "hf-trainer-liger", "compiled": "pytorch-ddp-compiled"}
# Fields without a meaning where all parameters are trained.
_OF_ADAPTERS: Final = ("training.adapters", "training.base_precision", "training.double_quantization")
# Why parts may have no field.
_WITHOUT: Final = dict.fromkeys(("sequence", "flash"), "without a model") | {"tf32": "with mixed precision"}
_KINDS: Final = ("read", "assumed", "ignored", "not modelled")


class Line(NamedTuple):
    """What became of a key. key: empty where no file gives it. field: what it sets, as `field=value`. reason: why it is
    assumed, ignored or not modelled."""

    kind: Literal["read", "assumed", "ignored", "not modelled"]
    key: str
    field: str
    reason: str = ""


class _Found(NamedTuple):
    """A value that a key gives, converted, with the place of the key."""

    value: Any
    place: str
    line: tuple[str, str]


class ConfigFiles(NamedTuple):
    """Configuration files as a scenario's fields, without a cluster, and what became of each key."""

    located: Located
    lines: tuple[Line, ...]


@dataclass
class _KeyReader:
    """What was found so far in all files."""

    found: dict[str, list[_Found]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    formats: list[Format] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def value(self, target: str, default: Any = None) -> Any:
        """The value of a target; `default` if there is none."""
        return self.found[target][0].value if target in self.found else default

    def read(self, located: Located, name: str, folder: Path) -> None:
        """Reads one file, and those that it names."""
        one = _format(located, name)
        self.formats.append(one)
        for path, value in _leaves(located.data, one.keys):
            key, place = ".".join(path), located.place(path)
            given = f"{key}: {yaml_file.on_one_line(value)[:60]}"
            if value == _AUTO and one.name in ("DeepSpeed", "Accelerate"):
                self.lines.append(Line("ignored", key, "", "auto: as other files say"))
            elif key in one.keys:
                self._apply(one, key, value, given, place, folder)
            elif value in (None, False, "", [], {}):
                self.lines.append(Line("ignored", key, "", _OFF))
            elif any(fnmatchcase(key, pattern) for pattern in one.harmless):
                self.lines.append(Line("ignored", key, "", "no effect on the time and memory of a step"))
            else:
                self.lines.append(Line("not modelled", given, ""))

    def _apply(self, one: Format, key: str, value: Any, given: str, place: str, folder: Path) -> None:
        try:
            values = converted(one.keys[key], value)
        except NotModelledError as error:
            self.lines.append(Line("not modelled", given, "", str(error)))
            return
        except ValueError as error:
            self.problems.append(f"{place}: {key}: {error}")
            return
        if not values:
            self.lines.append(Line("ignored", key, "", _OFF))
        for target, result in values.items():
            if target == FILE:
                self._follow(result, given, place, folder)
            else:
                self._add(target, _Found(result, place, (given, target)))

    def _add(self, target: str, found: _Found) -> None:
        before = self.found.setdefault(target, [])
        # a kind of adapters or of kernels may be refined
        if before and target not in (*LISTS, "adapter", "kernels", "software") and before[0].value != found.value:
            self.problems.append(
                f"{found.place}: {found.line[0]} contradicts {before[0].line[0]} at {before[0].place}; leave out one of both"
            )
        before.append(found)

    def _follow(self, reference: Any, given: str, place: str, folder: Path) -> None:
        """Reads the configuration of DeepSpeed that another file has or names."""
        self._add("sharding", _Found("deepspeed", place, (given, "sharding")))
        if isinstance(reference, Mapping):
            self.read(Located(dict(reference), {(): place}), place, folder)
            return
        path = next((one for one in (folder / str(reference), Path(str(reference))) if one.is_file()), None)
        if path is not None:
            self.read(_data(path), str(path), path.parent)
        elif not any(one.name == "DeepSpeed" for one in self.formats):
            self.problems.append(f"{place}: {given}: no such file; give its path by a further --from")


def read(paths: Sequence[str], model: str = "") -> ConfigFiles:
    """Reads configuration files as the fields of one scenario. model: in place of the one that they name.

    Raises NotFoundError, and ScenarioError for files of no known format, wrong values, and files that contradict one another.
    """
    reader = _KeyReader()
    # files that are named by others come first
    files = sorted(
        ((path, _data(Path(path))) for path in paths), key=lambda file: _format(file[1], file[0]).name != "DeepSpeed"
    )
    for path, located in files:
        reader.read(located, path, Path(path).parent)
    if model:
        reader.found["model"] = [_Found(model, "--set model", (f"model: {model}", "model"))]
    if reader.problems:
        raise ScenarioError(reader.problems)
    _assume(reader)
    located, values = _scenario(reader, Path(paths[0]), model)
    lines = [*reader.lines, *_read_lines(reader, values)]
    lines.sort(key=lambda line: _KINDS.index(line.kind))
    return ConfigFiles(located, tuple(dict.fromkeys(lines)))


def _data(path: Path) -> Located:
    """The content of a file. JSON may have tabs, which YAML has not."""
    located: Located
    try:
        located = yaml_file.read(path)
    except ScenarioError:
        try:
            located = Located(json.loads(path.read_text(encoding="utf-8")), {(): str(path)})
        except ValueError:
            located = Located(None)
        if path.suffix != ".json" or not isinstance(located.data, dict):
            raise
    return located


def format_of(data: Any) -> Format | None:
    """The format of a file's content; None for one of none."""
    keys = {".".join(path[:depth]) for path, _ in _leaves(data, ()) for depth in range(1, len(path) + 1)}
    return next((one for one in formats() if any(keys.issuperset(signs) for signs in one.signs)), None)


def _format(located: Located, name: str) -> Format:
    """The format of a file. Raises ScenarioError for one of none."""
    found = format_of(located.data) if isinstance(located.data, dict) else None
    if found is None:
        known = ", ".join(f"{one.name} ({' and '.join(one.signs[0])})" for one in formats())
        raise ScenarioError([f"{name}: not a known configuration; known by these keys: {known}"])
    return found


def _leaves(data: Any, keys: Collection[str], path: FieldPath = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of nested mappings by their path; mappings of a known key as one value."""
    for key, value in data.items():
        inner = (*path, str(key))
        if isinstance(value, dict) and value and ".".join(map(str, inner)) not in keys:
            yield from _leaves(value, keys, inner)
        else:
            yield tuple(map(str, inner)), value


def _assume(reader: _KeyReader) -> None:
    """Adds defaults of the formats for what no file gives. Numbers of samples follow from one another."""
    given = {name: reader.value(name) for name in ("total batch", "micro batch", "accumulation", "processes")}
    if given["total batch"] and [*given.values()].count(None) == 1:
        missing = next(name for name, value in given.items() if value is None)
        known = given["total batch"]
        for name, value in given.items():
            known = known / value if value is not None and name != "total batch" else known
        if known >= 1 and known == int(known):
            reader.found[missing] = [_Found(int(known), "", ("train_batch_size", missing))]
    for one in reader.formats:
        for target, default in one.defaults.items():
            if target not in reader.found and default.get("needs", target) in (target, *reader.found):
                reader.found[target] = [_Found(default["value"], "", ("", default["reason"]))]


def _scenario(reader: _KeyReader, path: Path, model: str) -> tuple[Located, dict[str, Any]]:
    """The fields of the scenario, nested with places, and the values of all targets by what shows them."""
    value, fields = reader.value, dict[str, Any]()
    for target in reader.found:
        if target not in PARTS:
            fields[target] = value(target)
    for target in LISTS:
        if target in fields:
            every = (one.value for one in reader.found[target])
            fields[target] = list(dict.fromkeys(name for one in every for name in (one if isinstance(one, list) else [one])))
    has_deepspeed = any(one.name == "DeepSpeed" for one in reader.formats)
    sharding = value("sharding", "deepspeed" if has_deepspeed else None)
    _training(reader, fields, is_sharded=sharding is not None)
    if sharding == "fsdp" and "training.zero" not in fields:
        fields["training.zero"] = 3
        reader.lines.append(Line("assumed", "", "training.zero=3", "FULL_SHARD by default"))
    if fields.get("training.zero") != 3 and "parameters" in (offloaded := fields.get("training.offload", ())):
        offloaded.remove("parameters")
        reader.lines.append(Line("not modelled", "", "training.offload=[parameters]", "parameters are not sharded"))
    fields["framework"] = _framework(reader, sharding)
    degrees = fields.get("strategy.tensor", 1) * fields.get("strategy.context", 1)
    processes = value("processes", degrees)
    for part, shown, option in (
        ("processes", f"strategy.workers={processes // degrees}", "gpus"),
        ("micro batch", "batch.per_worker=1", "batch"),
    ):
        if part not in reader.found:
            reader.lines.append(Line("assumed", "", shown, f"not given; add --set {option}=N"))
    fields |= {"strategy.kind": "hybrid" if degrees > 1 else "data_parallel", "strategy.workers": max(1, processes // degrees)}
    fields["strategy.microbatches"] = value("accumulation", 1)
    fields["batch.per_worker"] = value("micro batch", 1) * value("accumulation", 1)
    total = fields["batch.per_worker"] * fields["strategy.workers"]
    if value("total batch") not in (None, total):
        place = reader.found["total batch"][0].place
        message = f"{value('micro batch', 1)} x {value('accumulation', 1)} x {fields['strategy.workers']} samples are {total}"
        raise ScenarioError([f"{place}: train_batch_size: {value('total batch')}, but {message}; give num_processes"])
    if named := value("model"):
        fields["model.base"] = _absolute(model) if model else _model(named, path.parent, reader)
    if "sequence" in reader.found:
        fields["model.sequence"] = value("sequence")
        shown = f"model.sequence={value('sequence')}"
        reader.lines.append(Line("assumed", "", shown, "tokens of every sample, as packed ones have"))
    if "flash" in reader.found:
        fields["model.flash"] = value("flash")
    if not fields.get("model.base"):
        fields = {name: one for name, one in fields.items() if not name.startswith("model.")}
    return _nested(fields, reader, path), fields


def _training(reader: _KeyReader, fields: dict[str, Any], is_sharded: bool) -> None:
    """Adds the precision, and leaves out adapters that are not used. Sharded states have copies in 32 bits (DeepSpeed's
    optimizers; Accelerate's FSDP casts what is trained to 32 bits)."""
    stored = reader.value("stored")
    if "training.precision" not in fields:
        fields["training.precision"] = stored or ("tf32" if reader.value("tf32") else "fp32")
        reader.lines.append(Line("assumed", "", f"training.precision={fields['training.precision']}", "no mixed precision"))
    if fields.get("training.base_precision") != "nf4":
        fields.pop("training.double_quantization", None)
    if "adapter" in reader.found:
        fields["training.adapters.kind"] = reader.found["adapter"][-1].value
        return
    if stored and fields["training.precision"] in _NARROW and not is_sharded:
        fields["training.master"] = False
    for target in [name for name in fields if name.startswith(_OF_ADAPTERS)]:
        del fields[target]


def _framework(reader: _KeyReader, sharding: str | None) -> str:
    """The framework: that of the software, of its fused kernels, or of how it shards."""
    software = next(one.software for one in sorted(reader.formats, key=lambda one: one.software == "deepspeed"))
    kernels = [one.value for one in reader.found.get("kernels", ())]
    if software == "deepspeed":
        return "deepspeed-zero"
    if "unsloth" in kernels:
        return "unsloth"
    by_kernels: Mapping[str, str] = {}
    if software != "torchtune" and sharding:
        software = f"{software}-{sharding}"
    elif software != "torchtune":
        software, by_kernels = reader.value("software", software), _BY_KERNELS
    for one in reader.found.get("kernels", ()):
        if one.value not in by_kernels:
            reader.lines.append(Line("not modelled", one.line[0], "", f"{software} has no {one.value} kernels here"))
    return next((by_kernels[one] for one in kernels if one in by_kernels), software)


def _model(named: str, folder: Path, reader: _KeyReader) -> str:
    """The shipped model of a name on a hub, or the configuration in a local folder; empty if there is none."""
    if (folder / named / "config.json").is_file():
        return f"hf:{(folder / named / 'config.json').resolve()}"
    words = re.split(r"[-_ ]", named.rstrip("/").rpartition("/")[2].lower())
    own = catalog.letters("".join(one for one in words if not _NO_SHAPE.fullmatch(one)))
    found = next((name for name in catalog.names(catalog.PARTS["model"]) if catalog.letters(name) == own), "")
    if not found:
        reader.lines.append(
            Line("not modelled", reader.found["model"][0].line[0], "", "no such model ships; add --set model=NAME")
        )
    return found


def _absolute(model: str) -> str:
    """A model whose path, if it has one, does not depend on the folder."""
    kind, colon, path = model.rpartition("hf:")
    is_path = colon or "/" in model or model.endswith((".yaml", ".yml"))
    return f"{kind}{colon}{Path(path).resolve()}" if is_path else model


def _nested(fields: Mapping[str, Any], reader: _KeyReader, path: Path) -> Located:
    located = Located({"name": path.stem}, {(): str(path)})
    places = {PARTS.get(target, target): found[0].place for target, found in reader.found.items() if found[0].place}
    for name, one in fields.items():
        *parents, last = name.split(".")
        inner = located.data
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = one
        if name in places:
            located.places[tuple(name.split("."))] = places[name]
    return located


def _read_lines(reader: _KeyReader, fields: Mapping[str, Any]) -> Iterator[Line]:
    """What keys of the files became, with the values that fields have in the end, and what was assumed."""
    for target, found in reader.found.items():
        name = PARTS.get(target, target)
        for one in found:
            key, reason = one.line
            # a word for a part may not be what the field has in the end
            meant = {"software": one.value, "kernels": _BY_KERNELS.get(str(one.value), one.value), "tf32": "tf32"}
            value = fields.get(name)
            is_shown = value is not None and (not key or meant.get(target, value) == value)
            shown = f"{name.removesuffix('.base')}={yaml_file.on_one_line(value)}" if is_shown else ""
            if key and shown:
                yield Line("read", key, shown)
            elif key and target in _WITHOUT:
                yield Line("ignored", key.partition(":")[0], "", _WITHOUT[target])
            elif key and name.startswith(_OF_ADAPTERS):
                yield Line("ignored", key.partition(":")[0], "", "without adapters")
            elif shown:
                yield Line("assumed", "", shown, reason)


def paths_of(reference: str) -> list[str]:
    """The paths in a reference `from:FILE,FILE`. Raises InputError if there are none."""
    paths = [path for path in reference.removeprefix(PREFIX).split(",") if path]
    if not paths:
        raise InputError(f"{reference}: give the paths of configuration files, as in from:axolotl.yml,ds_config.json")
    return paths
