"""A claim for tests, small enough to be forecast in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scaleproof.proof.claims.claim import Claim, read

SCENARIO: dict[str, Any] = {
    "model": {"kind": "mlp", "layers": 2, "inputs": 64, "hidden": 64, "outputs": 64},
    "cluster": {
        "nodes": 8,
        "node": {"devices": 1},
        "network": {"bandwidth": "1 Gbit/s", "latency": "20 us"},
        "device": {"name": "small", "peak": {"fp32": "1 TFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "100 GB/s"},
    },
    "strategy": {"kind": "data_parallel", "workers": 2, "overlap": False},
    "batch": {"per_worker": 8},
}
CLAIM: dict[str, Any] = {
    "claim": "Rings are fast.",
    "because": "They are said to be.",
    "scenario": SCENARIO,
    "axis": {"name": "bandwidth", "unit": "Gbit/s", "set": {"cluster.network.bandwidth": "$x Gbit/s"}, "from": 1, "to": 100},
    "quantity": "efficiency",
    "lines": {"ring": {}, "one worker": {"strategy.workers": 1}},
    "test": {"of": "ring", "at_least": 0.5},
}


def claim(folder: Path, **changes: Any) -> Claim:
    """The claim with other values of its fields, read from a file."""
    path = folder / "example.yaml"
    path.write_text(yaml.safe_dump(CLAIM | changes, sort_keys=False))
    return read(str(path))
