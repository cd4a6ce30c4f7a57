"""Predicted and measured step times of training parts of a model, of optimizers on hosts, and of hosts of two speeds, on two
emulated hosts.

Compute is emulated, and so are the links between hosts (netlab) and between a device and its host's memory; gradients, sums,
gathers and the optimizer's step on the host are real. Needs root and iproute2. Where other work shares the machine, several
rounds of all cases show how much times vary; errors are those of the median.

Run: python benchmarks/fine_tuning_runs.py [rounds]
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
# Efficiencies of the second host's device, which computes a step 1.9 and 3.8 times as long as the first's, and how samples are
# divided.
_SPEEDS: Final = ((0.4, "equal"), (0.4, "auto"), (0.2, "equal"), (0.2, "auto"))


def scenarios() -> Iterator[Scenario]:
    """One scenario for each case."""
    for name, training in _CASES.items():
        yield _scenario(name, training)
    for (efficiency, shares), (what, training) in itertools.product(_SPEEDS, (("all parameters", {}), ("LoRA", _LORA))):
        device = {"base": "cpu-core", "name": "slower", "efficiency": efficiency}
        nodes = [{"count": 1}, {"count": 1, "device": device}]
        batch = {"shares": "auto"} if shares == "auto" else {}
        yield _scenario(f"{what}, second host {efficiency}, {shares}", training, {"nodes": nodes}, batch)


def _scenario(
    name: str, training: Mapping[str, Any], cluster: Mapping[str, Any] | None = None, batch: Mapping[str, Any] | None = None
) -> Scenario:
    fields = {
        "model": "gpt-mini",
        "cluster": {"base": "netlab-100mbit", **(cluster or {})},
        "strategy": {"kind": "data_parallel", "workers": 2, "bucket": "2 MiB"},
        "batch": {"total": 160, **(batch or {})},
        "steps": 5,
        "compute": "paced",
        "training": training,
    }
    scenario = load(fields, _SLOW_HOST if "offload" in training else ())
    return scenario.model_copy(update={"name": name.replace(", ", "-").replace(" ", "-")})


def main(rounds: int = 1) -> None:
    """Prints the table, and the median of the absolute errors."""
    print(f"{'trained':<40} predicted  measured   error of {rounds}")
    found = defaultdict[str, list[float]](list)
    predicted_s = dict[str, float]()

    def report(case: ReconciledCase) -> None:
        name = case.scenario.name
        predicted_s[name] = case.predicted.step_time_s
        found[name] += [] if case.measured is None else [case.measured.step_time_s]
        if case.measured is None:
            print(f"{name}: {case.failure}", flush=True)
        elif len(found[name]) == rounds:
            measured_s = statistics.median(found[name])
            errors = " ".join(f"{predicted_s[name] / one_s - 1:+.1%}" for one_s in found[name])
            print(f"{name:<40} {predicted_s[name]:7.3f} s {measured_s:7.3f} s  {errors}", flush=True)

    for _ in range(rounds):
        reconcile(list(scenarios()), partial(measure, on="netlab"), None, None, report)
    errors = [abs(predicted_s[name] / statistics.median(times_s) - 1) for name, times_s in found.items() if times_s]
    if errors:
        print(f"median of absolute errors {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
