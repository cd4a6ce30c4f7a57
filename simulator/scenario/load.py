"""Loads a scenario from a file, by the name of a shipped one, or from a row of a table of published measurements, and applies
`--set` overrides."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario import aliases, config_files
from scaleproof.simulator.scenario.capture_file import SUFFIX, around_capture, fit_to_cluster
from scaleproof.simulator.scenario.fields import GPUS
from scaleproof.simulator.scenario.gpus import read_with_gpus
from scaleproof.simulator.scenario.overrides import apply_override
from scaleproof.simulator.scenario.read import (
    merge_fitted_cluster,
    read_file,
    remove_fitted_cluster,
    resolve_part,
    resolve_parts,
    validated,
)
from scaleproof.simulator.scenario.schema import Scenario

# A scenario by its name, its path, `published:ROW-ID`, its model, or the fields of a YAML file.
Reference = str | Path | Mapping[str, Any]

# Overrides such as {"strategy.workers": 8} or ["strategy.workers=8"]. The override gpus=N is applied last (`read_with_gpus`).
Overrides = Mapping[str, Any] | Sequence[str] | str
_EXAMPLE: Final = "{'strategy.workers': 8}"
# The module that makes the YAML of a published training run, whose microbatch may be the largest that fits.
_PUBLISHED_RUNS: Final = "scaleproof.simulator.published.runs"
# Fields of a scenario that is given by its model alone.
_AROUND_A_MODEL: Final = {"strategy": {"kind": "hybrid"}, "training": {"precision": "bf16", "optimizer": "adam"}}
# Examples of fields that overrides must add to what is no whole scenario.
_NEEDED: Final = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "batch": "512"}


def load(reference: Reference, overrides: Overrides = ()) -> Scenario:
    """Loads a scenario with overrides.

    reference: the name of a shipped scenario, a path, `published:ROW-ID`, the fields of a scenario as in YAML, or a capture
    file, which has the cluster that it was captured for; a model (`hf:config.json`, `python:module:function`, the name of a
    shipped one), trained in bf16 with Adam, for which the overrides give cluster and batch; or configuration files of training
    software (`from:axolotl.yml,ds_config.json`), for which they give the cluster. overrides: a mapping of fields such as
    `{"strategy.workers": 8}`, or texts such as `"strategy.workers=8"`.

    Raises NotFoundError, ScenarioError with every problem as `file:line:column: field: what; what to do`, or InputError for an
    argument of another type.
    """
    changes = override_texts(overrides)
    if isinstance(reference, Mapping):
        return build(Located(copy.deepcopy(dict(reference)), {(): "scenario"}), Path("scenario"), changes)
    name = reference_text(reference)
    if name.startswith(catalog.PUBLISHED):
        text = import_module(_PUBLISHED_RUNS).text_of(name)
        return build(yaml_file.parse(text, name), Path(name), changes)
    if name.startswith(config_files.PREFIX):
        return _of_config_files(name, changes)
    if is_capture(name):
        return build(around_capture(name, changes), Path(name), changes)
    if catalog.is_model(name):
        return build(_around_model(name, changes), Path(name), changes)
    path = catalog.find_scenario(name)
    return build(yaml_file.read(path), path, changes)


def is_capture(reference: str) -> bool:
    """Whether a reference to a scenario is a capture file."""
    return reference.endswith(SUFFIX)


def _around_model(reference: str, overrides: Sequence[str]) -> Located:
    """The fields of a scenario that trains a model. Raises ScenarioError if the overrides lack some that are needed."""
    _check_given(reference, "a model without a scenario", ("cluster", "batch"), overrides)
    located = Located({"model": reference, **copy.deepcopy(_AROUND_A_MODEL)}, {(): reference})
    resolve_part(located, "model", Path())
    located.data["name"] = located.data["model"]["name"]
    return located


def _of_config_files(reference: str, overrides: Sequence[str]) -> Scenario:
    """The scenario of configuration files, with the model of an override in place of theirs. Raises InputError, and
    ScenarioError for files that are wrong, or if the overrides lack what they do not say."""
    paths = config_files.paths_of(reference)
    models = [override for override in overrides if override.startswith("model=")]
    files = config_files.read(paths, models[-1].partition("=")[2] if models else "")
    needed = [field for field in ("model", "cluster") if field not in files.located.data]
    _check_given(", ".join(paths), "the job", needed, overrides)
    others = [override for override in overrides if override not in models]
    keeps = not any(aliases.field_set_by(override).startswith("batch") for override in others)
    return build(files.located, Path(paths[0]), others, {"batch.per_worker"} if keeps else ())


def _check_given(reference: str, what: str, needed: Sequence[str], overrides: Sequence[str]) -> None:
    """Raises ScenarioError if the overrides lack needed fields."""
    given = {aliases.field_set_by(override).partition(".")[0] for override in overrides}
    if missing := [field for field in needed if field not in given]:
        settings = " ".join(f"--set {field}={_NEEDED[field]}" for field in missing)
        message = f"{what} needs {' and '.join(missing)}; add {settings}, for example"
        raise ScenarioError([f"{reference}: {message}"])


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


def reference_text(reference: object, kind: str = "scenario") -> str:
    """A name or path as text. Raises InputError for another type. kind: of what it is the name."""
    if isinstance(reference, str | Path):
        return str(reference)
    raise InputError(f"expected the name of a {kind}, a path, or a mapping with its fields; got {type(reference).__name__}")


def build(located: Located, path: Path, overrides: Sequence[str] = (), keeps: Collection[str] = ()) -> Scenario:
    """Builds a scenario from YAML that was read from `path`: resolves parts given by name, applies overrides, validates.

    keeps: fields that an override of the number of GPUs leaves as they are.

    Raises ScenarioError.
    """
    _check_is_scenario(located, path)
    problems, wrong = resolve_parts(located, path.parent)
    merge_fitted_cluster(located)
    gpus: int | None = None
    fixed: set[str] = set()
    for override in overrides:
        field = aliases.field_set_by(override)
        part = field.partition(".")[0]
        if field == GPUS:
            gpus = _whole(override)
        elif part not in wrong:
            try:
                fixed.add(apply_override(located, override, fixed))
                # a whole batch, too, fixes what it gives
                fixed |= {f"batch.{name}" for name in located.mapping(("batch",)) if field == "batch"}
            except ScenarioError as error:
                problems += error.problems
                wrong.add(part)
    try:
        aliases.expand(located)
    except ScenarioError as error:
        raise ScenarioError([*problems, *error.problems]) from None
    remove_fitted_cluster(located)
    located.data.setdefault("name", path.stem)
    strategy = located.data.get("strategy")
    if not problems and isinstance(strategy, dict) and strategy.get("kind") == "captured":
        fit_to_cluster(located, fixed)
    if gpus is None or problems:
        return validated(Scenario, located, problems, wrong)
    return read_with_gpus(located, gpus, fixed | {*keeps})


def cluster_with(path: Path, overrides: Sequence[str]) -> Cluster:
    """Loads a cluster file with some fields changed, such as 'cluster.network.latency=2 us'.

    Raises NotFoundError or ScenarioError.
    """
    located = read_file(path, "cluster").as_field("cluster")
    for override in overrides:
        if not override.startswith("cluster."):
            raise ScenarioError([f"--set {override}: expected a field of the cluster, such as cluster.network.latency=2us"])
        apply_override(located, override, ())
    return validated(Cluster, located.field("cluster"))


def _check_is_scenario(located: Located, path: Path) -> None:
    """Raises ScenarioError for YAML of another kind."""
    if not isinstance(located.data, dict):
        raise ScenarioError([f"{located.place(())}: a scenario must be a mapping with model, cluster, strategy and batch"])
    if {"model_type", "architectures"} & set(located.data):
        message = f"this is a model's configuration, not a scenario; give it as hf:{path}"
        raise ScenarioError([f"{located.place(())}: {message}"])
    if not {"cluster", "strategy"} & set(located.data) and (found := config_files.format_of(located.data)):
        message = f"this is a configuration of {found.name}, not a scenario; give it by --from {path}, or as from:{path}"
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
