"""Compute times of the frameworks that ship, over those without software costs: the table of the prior over unknown software.

Reference jobs are a GPT-2 and two Llamas, in microbatches of 4,096 and 16,384 tokens, on a rank of an A100 and an H100: seconds
of a step's passes over its layers, and of the optimizer's step on an eighth of the parameters. Nothing is measured or fitted.

Run: python benchmarks/unknown_software.py [--write]
"""

from __future__ import annotations

import argparse
import itertools
import math
from statistics import fmean
from typing import Any, Final

import yaml

from scaleproof.simulator.frameworks import IDEAL, Framework, shipped
from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.frameworks.prior import FILE, TIMES
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

# Models with their sequences, and clusters.
_MODELS: Final = (("gpt2-xl", 1024), ("llama-2-7b", 4096), ("llama-3.1-70b", 8192))
_TOKENS: Final = (4096, 16384)
_CLUSTERS: Final = ("dgx-a100", "dgx-h100")
# Microbatches of a step, and ranks that share the optimizer's step.
_MICROBATCHES: Final = 4
_SHARED: Final = 8
_HEADER: Final = """\
# Compute time of a step with each framework over that without software costs, as the geometric mean of reference jobs: with
# flash attention (flash) and with scores in memory (scores). The rest is from its own file. Written by:
# python benchmarks/unknown_software.py --write
"""


def jobs() -> list[Scenario]:
    """The reference jobs of one rank."""
    found = []
    for (model, sequence), cluster, tokens in itertools.product(_MODELS, _CLUSTERS, _TOKENS):
        fields: dict[str, Any] = {
            "model": {"base": model, "sequence": sequence, "flash": True, "layers": 8, "vocabulary": 50304},
            "cluster": cluster,
            "batch": max(1, tokens // sequence),
            "strategy": {"kind": "data_parallel", "workers": 1},
            "training": {"precision": "bf16", "optimizer": "adam"},
        }
        found.append(load(fields))
    return found


def compute_s(job: Scenario, framework: Framework, flash: bool) -> float:
    """Seconds of a step's compute of a job as a framework runs it. flash: whether with flash attention."""
    model = job.model.model_copy(update={"flash": flash})
    training = job.training.model_copy(update={"autocast": framework.autocast.usual or None})
    own = job_of(job.model_copy(update={"framework": framework, "model": model, "training": training}))
    passes_s = sum(sum(own.layer_passes_s(layer, own.samples_per_worker)[:2]) for layer in own.layers)
    parameters = sum(layer.parameters for layer in own.layers)
    return _MICROBATCHES * passes_s + own.device_optimizer_s(parameters / _SHARED)


def relative_times(flash: bool) -> dict[str, float]:
    """Time of each framework with a place in the prior over that of `ideal` with flash attention, the fastest first."""
    known = jobs()
    ideal_s = [compute_s(job, IDEAL, True) for job in known]
    found = {}
    for framework in map(shipped, names()):
        if framework.use is not None and (framework.has_flash or not flash):
            ratios = (compute_s(job, framework, flash) / bound_s for job, bound_s in zip(known, ideal_s, strict=True))
            found[framework.name] = round(math.exp(fmean(map(math.log, ratios))), 3)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def table() -> dict[str, dict[str, Any]]:
    """By name, the place of each framework in the prior, what it supports, and its times."""
    times = {field: relative_times(flash) for flash, field in TIMES.items()}
    return {
        name: {
            "use": shipped(name).use.model_dump(mode="json"),  # type: ignore[union-attr]
            "supports": list(shipped(name).supports),
            **{field: found[name] for field, found in times.items() if name in found},
        }
        for name in times[TIMES[False]]
    }


def main() -> None:
    """Prints the table, or writes it to the file that predictions read."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    content = _HEADER + "".join(
        f"{name}: {yaml.safe_dump(one, sort_keys=False, default_flow_style=True, width=1000)}" for name, one in table().items()
    )
    if parser.parse_args().write:
        FILE.write_text(content, encoding="utf-8")
    else:
        print(content, end="")


if __name__ == "__main__":
    main()
