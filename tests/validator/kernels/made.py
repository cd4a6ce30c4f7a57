"""Tables of kernels for tests: a few rows that are measured, with changes, and files of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from scaleproof.validator.kernels.table import KernelTable, read, shipped

GEMM = {"gpu": "H100-80GB-SXM", "kind": "gemm", "precision": "bf16", "m": "4096", "n": "4096", "k": "4096", "latency_us": "190"}
ATTENTION = {
    "gpu": "H100-80GB-SXM", "kind": "attention_forward", "precision": "bf16", "batch": "4", "seq": "4096", "heads": "32",
    "kv_heads": "8", "head_dim": "128", "latency_us": "1300",
}  # fmt: skip
MIXTURE = {
    "gpu": "H100-80GB-SXM", "kind": "moe_forward", "precision": "bf16", "tokens": "4096", "hidden": "4096", "inter": "14336",
    "experts": "8", "topk": "2", "moe_tp": "1", "moe_ep": "1", "routing": "balanced", "latency_us": "4500",
}  # fmt: skip


@cache
def all_shipped() -> KernelTable:
    """The table that ships, which is read once."""
    return read(shipped())


def written(path: Path, *rows: Mapping[str, str]) -> Path:
    """A table of these rows, with the columns that they have."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def sampled(path: Path, gpu: str, count: int, factor: float = 1.0) -> Path:
    """A table of `count` kernels of each kind of a GPU from the table that ships. factor: on their times."""
    table = all_shipped().of_gpu(gpu)
    rows = []
    for kind in ("gemm", "attention_forward", "moe_forward"):
        own = table.subset(table.rows(kind, "bf16"))
        step = max(1, len(own) // count)
        for at in range(0, step * count, step):
            cells = {name: f"{size[at]:.0f}" for name, size in own.sizes.items() if size[at] == size[at]}
            rows.append(
                {"gpu": gpu, "kind": kind, "precision": "bf16", **cells, "routing": str(own.routing[at])}
                | {"latency_us": f"{own.measured_s[at] * 1e6 * factor:.9g}"}
            )
    return written(path, *rows)
