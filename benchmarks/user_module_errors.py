"""Errors of predictions for modules of published packages: calibrates their layers, trains them on two ranks, and compares.

    python -m benchmarks.user_module_errors calibrate OUT
    python -m benchmarks.user_module_errors reconcile OUT

Needs torchvision and transformers, and a quiet machine. Prints the lines of `scaleproof reconcile`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from scaleproof.commands.main import main

MODULES: Final = ("resnet50", "vision_transformer", "unet", "llama", "bert")
_SCENARIO: Final = """\
name: {name}
model: python:benchmarks.user_modules:{module}
cluster: {cluster}
strategy: {strategy}
batch: {{total: 8}}
training: {{precision: fp32, optimizer: momentum}}
compute: real
steps: 16
"""
_STRATEGIES: Final = {"ring": "{kind: data_parallel, workers: 2}", "pipeline": "{kind: pipeline, stages: 2, microbatches: 2}"}


def calibrate(out: Path) -> int:
    """Writes a cluster file with the times of the modules' layers."""
    models = [word for name in MODULES for word in ("--model", f"python:benchmarks.user_modules:{name}")]
    return main(["calibrate", "--on", "local", *models, "--budget", "150 s", "--out", str(out / "cluster.yaml")])


def reconcile(out: Path) -> int:
    """Predicts and trains all modules on two ranks."""
    paths = []
    for label, strategy in _STRATEGIES.items():
        for module in MODULES:
            name = f"{module}-{label}"
            path = out / f"{name}.yaml"
            path.write_text(_SCENARIO.format(name=name, module=module, cluster=out / "cluster.yaml", strategy=strategy))
            paths.append(str(path))
    return main(["reconcile", *paths, "--on", "local", "--out", str(out / "proof"), "--resume"])


if __name__ == "__main__":
    sys.exit({"calibrate": calibrate, "reconcile": reconcile}[sys.argv[1]](Path(sys.argv[2]).resolve()))
