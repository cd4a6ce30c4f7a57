"""A published training run of a transformer as a scenario: only what a user could have written, and what had to be assumed."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError, InputError, ScaleproofError
from scaleproof.simulator.frameworks import Framework, shipped
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.option_rules import rules_of
from scaleproof.simulator.parallelism.options import EXPERT
from scaleproof.simulator.published.clusters import cluster_of
from scaleproof.simulator.published.tables import Row, folder
from scaleproof.simulator.scenario.read import load_model
from scaleproof.simulator.scenario.schema import Scenario

# What a blank is taken for: what most of the tables' runs have. Precision, vocabulary and recomputation are the framework's,
# and a microbatch is as large as fits.
_ASSUMED: Final = {"zero_stage": "0", "optimizer": "adam"}
_BLANK: Final = ("", "?")
# Words may be said to be assumed by who made the table, which is a blank too.
_ASSUMED_WORDS: Final = "vocabulary assumed"
# Length of words for software that a scenario may have.
_MOST_WORDS: Final = 200
# From the least to the most.
_RECOMPUTED: Final = ("none", "selective", "full")
_PRECISIONS: Final = ("fp8", "bf16", "fp16", "fp32", "tf32")
# Options of ranks with different experts, and recomputed modules that a note may name.
_OF_EXPERTS: Final = tuple(name for name, rules in rules_of(Hybrid).items() if EXPERT in rules)
_MODULES: Final = re.compile(r"\b(mla_up_proj|moe_act|layernorm|core_attn|shared_experts|mlp|moe)\b")
_RECIPES: Final = {"": "delayed", "tensorwise": "current", "current": "current", "delayed": "delayed"}


@dataclass(frozen=True)
class RowScenario:
    """A row's scenario. assumed: columns that were blank, or named what is not known. slower: the scenario as slow as what is
    assumed may make it, with microbatches of one sample and an untuned network; None if neither is assumed."""

    scenario: Scenario
    assumed: tuple[str, ...]
    slower: Scenario | None = None

    @property
    def nodes(self) -> int:
        """Nodes that the run takes."""
        return self.scenario.strategy.nodes_needed(self.scenario.cluster)


def row_scenario(row: Row, framework: Framework | None = None, named: bool = True) -> RowScenario:
    """The scenario of a row of transformer_training.csv.

    framework: in place of the one that trained the row. named: whether the scenario names the row's framework; else it leaves
    that to the default, as a user would who does not know about frameworks. Raises InputError where the row lacks what a
    scenario needs, and ScaleproofError where the scenario is not valid.
    """
    try:
        return _RowReader(row, framework, named).scenario()
    except (KeyError, ValueError) as error:
        if isinstance(error, ScaleproofError):
            raise
        raise InputError("no run that can be read") from None


@functools.cache
def _known_software() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((folder() / "software.yaml").read_text(encoding="utf-8"))
    return found


def software_of(row: Row) -> Mapping[str, Any] | None:
    """The entry of software.yaml for a row; None where its software is not known."""
    software, source, model = (row.get(column, "") for column in ("software", "source", "model"))
    dated = re.search(r"20\d\d-?(0[1-9]|1[0-2])(?!\d)", source)
    found = [entry for entry in _known_software() if re.search(entry["software"], software, re.IGNORECASE)]
    stated = {name: value for entry in found if "framework" not in entry for name, value in entry["strategy"].items()}
    for entry in found:
        if "framework" not in entry:
            continue
        if not re.search(entry.get("model", ""), model):
            continue
        if "date" in entry and not (dated and re.search(entry["date"], dated[0])):
            continue
        if all(entry.get(column, row.get(column, "")) == row.get(column, "") for column in ("precision", "method")):
            return {**entry, "strategy": {**entry.get("strategy", {}), **stated}}
    return None


class _RowReader:
    """Reads one row."""

    def __init__(self, row: Row, framework: Framework | None, named: bool) -> None:
        self._software: Mapping[str, Any] = software_of(row) or {}
        self._assumed: list[str] = [] if self._software else ["software"]
        self._trained_by = shipped(self._software.get("framework", "megatron-core-0.12"))
        self._framework = framework or self._trained_by
        self._names = framework is not None or (named and bool(self._software))
        self._words = row["software"][:_MOST_WORDS] if named and not self._software else ""
        if _ASSUMED_WORDS in row["note"]:
            row = {**row, "vocab": ""}
        tensor = _whole(row["tp"])
        # what ranks do not divide of the words is left out
        words = self._framework.vocabulary // tensor * tensor
        framework = self._framework
        usual = {"vocab": str(words), "precision": framework.precision, "recompute": framework.recompute}
        known = {**usual, **_ASSUMED, "microbatch_seqs": ""}
        self._assumed += [column for column in known if row.get(column, "") in _BLANK]
        self.row = {**row, **{column: value for column, value in known.items() if row.get(column, "") in _BLANK}}

    def scenario(self) -> RowScenario:
        row = self.row
        if row["precision"] not in _PRECISIONS:
            raise InputError(f"unknown precision: {row['precision']}")
        cluster, assumed = cluster_of(row)
        parts: dict[str, Any] = {
            "name": row["id"],
            "model": self._model(),
            "cluster": cluster,
            "batch": {"total": _needed(row["global_batch_seqs"])},
        }
        if self._names:
            parts["framework"] = self._framework
        elif self._words:
            parts["software"] = self._words
        scenario, assumed = self._fitting(parts), (*self._assumed, *assumed)
        return RowScenario(scenario, assumed, self._slower(parts, scenario, assumed))

    def _slower(self, parts: Mapping[str, Any], scenario: Scenario, assumed: Collection[str]) -> Scenario | None:
        """See `RowScenario`."""
        network, found = scenario.cluster.network, None
        if "microbatch_seqs" in assumed:
            found = scenario = self._of(parts, scenario.training.recompute, 1)
        if "network" in assumed and network is not None and scenario.strategy.nodes_needed(scenario.cluster) > 1:
            untuned = network.model_copy(update={"state": "untuned"})
            cluster = scenario.cluster.model_copy(update={"network": untuned})
            found = scenario.model_copy(update={"cluster": cluster})
        return found

    def _fitting(self, parts: Mapping[str, Any]) -> Scenario:
        """With the row's microbatch and recomputation. Where it states no microbatch, the largest that fits; where it states no
        recomputation of a run that ran, the framework's usual one, or the least that fits."""
        workers, stages, usual = _whole(self.row["dp"]), _whole(self.row["pp"]), self.row["recompute"]
        each, stated = _needed(self.row["global_batch_seqs"]) // workers, self.row["microbatch_seqs"]
        sizes = [size for size in range(each, 0, -1) if each % size == 0 and each // size >= stages]
        sizes = [_whole(stated)] if stated else sizes or [1]
        is_open = "recompute" in self._assumed and self.row.get("fits") not in ("no", "failed")
        ways = _RECOMPUTED[_RECOMPUTED.index(usual) :] if is_open else (usual,)
        tried = ((way, size) for way in ways for size in sizes)
        if len(ways) * len(sizes) == 1:
            return self._of(parts, *next(tried))
        fitting = (scenario for one in tried if memory(scenario := self._of(parts, *one)).fits)
        return next(fitting, None) or self._of(parts, usual, sizes[-1])

    def _of(self, parts: Mapping[str, Any], recompute: str | Recompute, microbatch: int) -> Scenario:
        workers = _whole(self.row["dp"])
        microbatches, rest = divmod(_needed(self.row["global_batch_seqs"]), workers * microbatch)
        if rest or not microbatches:
            raise InputError("microbatches do not divide the batch")
        strategy = {**self._strategy(), "microbatches": microbatches}
        return Scenario.model_validate({**parts, "training": self._training(recompute), "strategy": strategy})

    def _model(self) -> dict[str, Any] | AnyModel:
        """Gated MLPs are a Llama's; the rest are GPTs, whose details are those that the framework's runs have."""
        row = self.row
        heads, hidden = _needed(row["heads"]), _needed(row["hidden"])
        fields: dict[str, Any] = {
            "name": row["model"].replace("/", "-"),
            "layers": _needed(row["layers"]), "hidden": hidden, "heads": heads, "key_heads": _whole(row["kv_heads"], heads),
            "vocabulary": int(row["vocab"]), "feedforward": _whole(row["ffn_hidden"], 4 * hidden),
            "sequence": _needed(row["seq_len"]),
        }  # fmt: skip
        width = re.search(r"head size (\d+)", row["note"])
        if width:
            fields["head_width"] = int(width[1])
        if row.get("tied_embeddings") in ("yes", "no"):
            fields["tied"] = row["tied_embeddings"] == "yes"
        fields |= self._experts()
        if "experts" in fields and (known := self._shipped_model(fields)):
            return known
        if row["gated_mlp"] == "yes":
            return {"kind": "llama", **fields, "flash": self._framework.has_flash}
        return {"kind": "gpt", **self._framework.model, **fields}

    def _shipped_model(self, fields: Mapping[str, Any]) -> AnyModel | None:
        """The mixture that ships under the row's name, for what the table has no columns for, such as latent attention."""
        name, changed = self.row["model"].lower(), ("layers", "vocabulary", "sequence", "tied", "experts")
        if name not in catalog.names("models"):
            return None
        own = load_model(name)
        assert isinstance(own, Transformer)
        if own.experts is None or (own.hidden, own.heads) != (fields["hidden"], fields["heads"]):
            return None
        experts = own.experts.model_dump() | fields["experts"]
        return load_model(name, **{field: fields[field] for field in changed if field in fields} | {"experts": experts})

    def _experts(self) -> dict[str, Any]:
        row = self.row
        if not row.get("experts"):
            if _whole(row["ep"], 1) > 1:
                raise InputError("experts that the table does not describe")
            return {}
        layers = _needed(row["layers"])
        experts: dict[str, Any] = {
            "count": _whole(row["experts"]), "active": _whole(row["experts_per_token"]),
            "feedforward": _whole(row["expert_ffn_hidden"]), "shared": int(row["shared_experts"] or 0),
            "dense_layers": layers - _whole(row["moe_layers"], layers),
        }  # fmt: skip
        if "forced to balance" in row["note"]:
            experts["imbalance"] = 1.0
        return {"experts": experts}

    def _training(self, recompute: str | Recompute) -> dict[str, Any]:
        row, found = self.row, dict[str, Any]()
        found["precision"] = row["precision"]
        if row["precision"] == "fp8":
            recipe = row.get("fp8_recipe", "")
            found["fp8_recipe"] = _RECIPES.get(recipe, recipe)
        found |= {"optimizer": row["optimizer"], "zero": _whole(row["zero_stage"], 0, 0), "recompute": recompute}
        if recompute == "selective":
            modules = sorted(set(_MODULES.findall(f"{row['note']} {row['software']}"))) if row.get("experts") else []
            found["recompute"] = {"modules": modules} if modules else self._trained_by.selective.shorthand
        more = self._software.get("training", {})
        found["zero"] = max(found["zero"], more.get("zero", 0))
        return found

    def _strategy(self) -> dict[str, Any]:
        row = self.row
        tensor, chunks = _whole(row["tp"]), _whole(row["virtual_stages"], 1)
        degrees: dict[str, Any] = {
            "kind": "hybrid", "workers": _whole(row["dp"]), "stages": _whole(row["pp"]), "tensor": tensor,
            "context": _whole(row["cp"], 1), "expert": _whole(row["ep"], 1), "chunks": chunks,
            "schedule": "interleaved_1f1b" if chunks > 1 else "1f1b",
            "sequence_parallel": row["sequence_parallel"] == "yes" and tensor > 1,
        }  # fmt: skip
        if folded := re.search(r"expert tensor parallel (\d+)", row["note"]):
            degrees["expert_tensor"] = int(folded[1]) if tensor > 1 or degrees["context"] > 1 else None
        return degrees | dict(self._stated(degrees))

    def _stated(self, degrees: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Fields that the software's words, or the note, state."""
        for name, value in self._software.get("strategy", {}).items():
            if name in _OF_EXPERTS and degrees["expert"] == 1:
                continue
            if name != "overlap_tensor" or degrees["sequence_parallel"]:
                yield name, value
        sharded = re.search(r"sharded within groups of (\d+) ranks|full shard over the node of (\d+)", self.row["note"])
        if sharded and (ranks := int(sharded[1] or sharded[2])) < degrees["workers"]:
            yield "shard_over", ranks


def _needed(text: str) -> int:
    """A whole number that a run cannot do without. Raises ValueError for no text, FieldError for one that is too small."""
    return _whole(text, int(text))


def _whole(text: str, blank: int = 1, least: int = 1) -> int:
    """A whole number of at least `least`; `blank` for no text. Raises FieldError for one that is too small, else ValueError."""
    found = int(text or blank)
    if found < least:
        raise FieldError(("row",), f"{found} is less than {least}")
    return found
