"""Errors of predictions for branches on two ranks: towers on hosts of an emulated network, with emulated compute.

    sudo python -m benchmarks.branches OUT

Prints the lines of `scaleproof reconcile`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from scaleproof.commands.main import main

# Passes over most layers take a millisecond or more, longer than emulating them does.
_TOWERS: Final = {
    "mlp": "{kind: mlp, layers: 3, inputs: 784, hidden: 1024, outputs: 128}",
    "wide": "{kind: mlp, layers: 4, inputs: 256, hidden: 512, outputs: 512}",
    "deep": "{kind: mlp, layers: 8, inputs: 256, hidden: 384, outputs: 1024}",
    "large": "{kind: mlp, layers: 3, inputs: 1024, hidden: 1536, outputs: 64}",
}
_BATCHES: Final = (128, 512)
_SCENARIO: Final = """\
name: {name}
model: {{kind: siamese, tower: {tower}}}
cluster: netlab-200mbit
strategy: {{kind: model_parallel, stages: 2}}
batch: {{total: {batch}}}
compute: paced
steps: 6
"""


def run(out: Path) -> int:
    """Predicts and trains all cases."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for tower, text in _TOWERS.items():
        for batch in _BATCHES:
            path = out / f"{tower}-{batch}.yaml"
            path.write_text(_SCENARIO.format(name=f"{tower}-{batch}", tower=text, batch=batch))
            paths.append(str(path))
    return main(["reconcile", *paths, "--on", "netlab", "--out", str(out / "proof"), "--resume"])


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
