"""Predicted and measured step times of training parts of a model, and of optimizers on hosts, on two emulated hosts.

Compute is emulated, and so are the links between hosts (netlab) and between a device and its host's memory; gradients, sums,
gathers and the optimizer's step on the host are real. Needs root and iproute2.

Run: python benchmarks/fine_tuning_runs.py
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.reconciliation.reconcile import ReconciledCase, reconcile

_FROZEN: Final = {"freeze": ["embedding", "block[01]"]}
_LORA: Final = {"adapters": {"rank": 8}}
_HOST: Final = {"optimizer": "adam", "offload": ["optimizer"]}
# slow enough to matter
_SLOW_HOST: Final = {"cluster.node.host": {"link": "20 MB/s", "adam_rate": 4e6}}
_CASES: Final[dict[str, dict[str, Any]]] = {
    "all parameters": {},
    "half of the blocks frozen": _FROZEN,
    "half frozen, ZeRO 3": _FROZEN | {"zero": 3},
    "LoRA": _LORA,
    "LoRA, ZeRO 3": _LORA | {"zero": 3},
    "optimizer on the host": _HOST,
    "optimizer on the host, ZeRO 2": _HOST | {"zero": 2},
    "LoRA, optimizer on the host": _LORA | _HOST,
}


def scenarios() -> Iterator[Scenario]:
    """One scenario for each case."""
    for name, training in _CASES.items():
        fields = {
            "model": "gpt-mini",
            "cluster": "netlab-100mbit",
            "strategy": {"kind": "data_parallel", "workers": 2, "bucket": "2 MiB"},
            "batch": {"total": 160},
            "steps": 5,
            "compute": "paced",
            "training": training,
        }
        scenario = load(fields, _SLOW_HOST if "offload" in training else ())
        yield scenario.model_copy(update={"name": name.replace(", ", "-").replace(" ", "-")})


def _report(case: ReconciledCase) -> None:
    name, predicted_s = case.scenario.name.replace("-", " "), case.predicted.step_time_s
    if case.measured is None or case.error is None:
        print(f"{name:<32} {1e3 * predicted_s:6.1f} ms  {case.failure}", flush=True)
    else:
        print(
            f"{name:<32} {1e3 * predicted_s:6.1f} ms {1e3 * case.measured.step_time_s:6.1f} ms {case.error:+7.1%}", flush=True
        )


def main() -> None:
    """Prints the table, and the median of the absolute errors."""
    print(f"{'trained':<32} predicted  measured   error")
    cases = reconcile(list(scenarios()), partial(measure, on="netlab"), None, None, _report)
    errors = [abs(case.error) for case in cases if case.error is not None]
    if errors:
        print(f"median of absolute errors {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
