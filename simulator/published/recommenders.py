"""A published run of a recommender as a scenario: only what a user could have written, and what had to be assumed."""

from __future__ import annotations

import re
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Dlrm
from scaleproof.simulator.model.recommender.placement import TABLE_BYTES, EmbeddingTable
from scaleproof.simulator.published.clusters import cluster_of, device_named
from scaleproof.simulator.published.tables import Cells, Row
from scaleproof.simulator.published.training_runs import RowScenario, software_of
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model

# Models that ship by the words of a row's model, the first that is found.
_MODELS: Final = (
    ("NeuMF|NCF", "ncf"), ("two.?tower", "two-tower"), ("DCN", "dlrm-dcnv2"), ("DLRM.*small", "dlrm-small"),
    ("DLRM", "dlrm-large"),
)  # fmt: skip
# How tables are divided by the words of a row's sharding, the first that is found. SOK sends each key to the device of its
# remainder and its row back (All2AllDenseEmbedding), which moves what ranges of columns move.
_SHARDING: Final = (
    ("column", "column"), ("row", "row"), ("distributed by SOK", "column"), ("replicated|data.parallel \\(tables", None),
    ("", "table"),
)  # fmt: skip
# Clusters that ship by words of the row's GPU, interconnect and source.
_CLUSTERS: Final = (
    ("p4d", "aws-p4d"), ("p3dn", "aws-p3dn"), ("DGX-2", "dgx-2"), ("V100.*16GB.*DGX-1", "dgx1-v100-16gb"),
    ("V100", "dgx1-v100"), ("A100-SXM-40GB", "dgx-a100-40gb"), ("A100", "dgx-a100"), ("H100", "dgx-h100"),
)  # fmt: skip
_ROW_OPTIMIZERS: Final = {"sgd": "sgd", "adam": "adam", "adagrad": "adagrad"}
# Rows of tables that a total size of all tables changes: those of ids; small ones are categories.
_LARGE_ROWS: Final = 100_000


def recommender_run(row: Row, named: bool = True) -> RowScenario:
    """The scenario of a row of recommenders.csv.

    named: whether the scenario names the row's framework; else it leaves that to the default. Raises InputError where the row
    lacks what a scenario needs or says what is not modelled, and ScaleproofError where the scenario is not valid.
    """
    workers = int(row["gpus"] or 0)
    if not workers:
        raise InputError("trained on processors, of which the table gives no rates")
    if not row["batch_total"]:
        raise InputError("no batch is given")
    if "host" in row["placement"].lower() or "host" in row["sharding"].lower():
        raise InputError("tables that the host's processors look up are not modelled, only rows that devices cache")
    software = software_of(row) or {}
    assumed = [] if software else ["software"]
    precision, optimizer = row["precision"].lower(), re.sub(r"[^a-z].*", "", row["optimizer"].lower())
    # the dense part's optimizer with as many states
    dense = {"adagrad": "momentum"}.get(optimizer, optimizer)
    if optimizer not in _ROW_OPTIMIZERS:
        raise InputError(f"optimizer {row['optimizer'] or 'not stated'} is not modelled")
    strategy: dict[str, Any] = {"kind": "data_parallel", "workers": workers, **software.get("strategy", {})}
    shard = _found(_SHARDING, row["sharding"])
    if shard is not None:
        strategy["tables"] = {"shard": shard, "optimizer": _ROW_OPTIMIZERS[optimizer]}
        assumed += [] if row["sharding"] else ["sharding"]
    mixed = re.search(r"amp|mixed|fp16|bf16", precision)
    if "compress" in precision:
        strategy["compression"] = {"kind": "fp16"}
    training = {"precision": _precision(precision), "optimizer": dense, "autocast": bool(mixed)}
    parts: dict[str, Any] = {
        "name": row["id"],
        "model": _model(row, assumed),
        "cluster": _cluster(row, assumed),
        "strategy": strategy,
        "batch": {"total": int(row["batch_total"])},
        "training": training | dict(software.get("training", {})),
    }
    if named and software:
        parts["framework"] = software["framework"]
    return RowScenario(load(parts), tuple(assumed))


def _precision(words: str) -> str:
    if "bf16" in words:
        return "bf16"
    if re.search("amp|fp16 mixed|mixed", words):
        return "fp16"
    return "tf32" if words.startswith("tf32") else "fp32"


def _model(row: Row, assumed: list[str]) -> Any:
    """The model that ships, with the width of rows and the total of rows, or size, that a row gives."""
    name = _found(_MODELS, row["model"])
    if name is None:
        raise InputError(f"no model that ships is called {row['model']}")
    model = load_model(name)
    assert isinstance(model, Dlrm)
    tables = model.tables
    if row["dim"] and {int(row["dim"])} != {table.dim for table in tables}:
        raise InputError(f"rows of {row['dim']} elements, which {name} has not")
    stated = float(row["rows_total"] or 0)
    if not stated and row["embedding_GiB"]:
        stated = float(row["embedding_GiB"]) * 2**30 / TABLE_BYTES["fp32"] / tables[0].dim
    if not stated or name == "ncf":
        return name
    if not row["rows_total"]:
        assumed.append("rows_total")
    return {"base": name, "tables": [table.model_dump(exclude_defaults=True) for table in _scaled(tables, stated)]}


def _scaled(tables: tuple[EmbeddingTable, ...], rows: float) -> list[EmbeddingTable]:
    """The tables with other numbers of rows in the large ones, so that all have `rows`."""
    large = [table.rows >= _LARGE_ROWS for table in tables]
    of_large = sum(table.rows for table, is_large in zip(tables, large, strict=True) if is_large)
    rest = sum(table.rows for table in tables) - of_large
    factor = max(0.0, rows - rest) / of_large if of_large else 1.0
    return [
        table.model_copy(update={"rows": max(1, round(table.rows * factor))}) if is_large else table
        for table, is_large in zip(tables, large, strict=True)
    ]


def _cluster(row: Row, assumed: list[str]) -> Any:
    """The cluster that ships under one of the row's words, else that of its device; one device for one GPU."""
    words = f"{row['gpu']} {row['interconnect']} {row['source'].rpartition('«')[2]}"
    workers, nodes = int(row["gpus"]), int(row["nodes"] or 1)
    name = _found(_CLUSTERS, row["interconnect"]) or _found(_CLUSTERS, words)
    if name is None:
        cells = Cells({"gpu": device_named(row["gpu"]).upper(), "gpus": row["gpus"]})
        name = cluster_of(cells)[0].name
    if not row["interconnect"]:
        assumed += ["interconnect"] if workers > 1 else []
    return {"base": name, "nodes": nodes, "node": {"devices": -(-workers // nodes)}}


def _found(patterns: tuple[tuple[str, str | None], ...], words: str) -> str | None:
    return next((value for pattern, value in patterns if re.search(pattern, words, re.IGNORECASE)), None)
