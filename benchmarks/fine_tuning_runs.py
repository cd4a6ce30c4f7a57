"""Predicted and measured step times of fine-tuning: parts of a model, optimizers, states, lengths of samples, and hosts of two
speeds.

By default on two emulated hosts: compute is emulated, and so are the links between hosts (netlab) and between a device and its
host's memory; gradients, sums, gathers and the optimizer's step are real. Needs root and iproute2. With --cluster FILE two
ranks compute on the cores of a cluster file, which `scaleproof calibrate --out FILE --model gpt-mini` writes. Where other work
shares the machine, several rounds of all cases show how much times vary; errors are those of the median. Words choose the rows
that have one in their names.

Run: python benchmarks/fine_tuning_runs.py [--cluster FILE] [--rounds N] [WORD ...]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.reconciliation.reconcile import ReconciledCase, reconcile

_FROZEN: Final = {"freeze": ["embedding", "block[01]"]}
_LORA: Final = {"adapters": {"rank": 8}}
_HOST: Final = {"optimizer": "adam", "offload": ["optimizer"]}
# slow enough to matter, for states and for activations
_SLOW_HOST: Final = {"cluster.node.host": {"link": "20 MB/s", "adam_rate": 4e6}}
_HOSTS: Final[dict[str, Any]] = {"optimizer": _SLOW_HOST, "activations": {"cluster.node.host": {"link": "200 MB/s"}}}
_LAB: Final = "netlab-100mbit"
_SHARDS: Final = {"optimizer": "adam", "offload": ["optimizer", "parameters"], "zero": 3}
_EMULATED: Final[dict[str, dict[str, Any]]] = {
    "all parameters": {},
    "half of the blocks frozen": _FROZEN,
    "half frozen, ZeRO 3": _FROZEN | {"zero": 3},
    "LoRA": _LORA,
    "LoRA, ZeRO 3": _LORA | {"zero": 3},
    "optimizer on the host": _HOST,
    "optimizer on the host, ZeRO 2": _HOST | {"zero": 2},
    "LoRA, optimizer on the host": _LORA | _HOST,
    "delayed update on the host": _HOST | {"delay_update": True},
    "optimizer and parameters on the host": _SHARDS,
    "activations on the host": {"offload": ["activations"]},
    "Lion": {"optimizer": "lion"},
    "Muon": {"optimizer": "muon"},
    "Muon, ZeRO 1": {"optimizer": "muon", "zero": 1},
    "Muon, ZeRO 3": {"optimizer": "muon", "zero": 3},
    "clipped, ZeRO 3": {"clip_gradients": True, "zero": 3},
}
_REAL: Final[dict[str, dict[str, Any]]] = {
    "samples of one length": {},
    "padded": {"lengths": {}},
    "grouped by length": {"lengths": {"batches": "grouped"}},
    "packed": {"lengths": {"batches": "packed"}},
    "packed, attention across": {"lengths": {"batches": "packed", "across": True}},
    "padded, ZeRO 3": {"lengths": {}, "zero": 3},
    "Adam": {"optimizer": "adam"},
    "Adam, states of 16 bits": {"optimizer": "adam", "state_bits": 16},
    "Adam, states of 8 bits": {"optimizer": "adam", "state_bits": 8},
    "Lion, real": {"optimizer": "lion"},
    "Muon, real": {"optimizer": "muon"},
    "average of parameters": {"ema": "fp32"},
    "clipped": {"clip_gradients": True},
}
_LENGTHS: Final = {"distribution": "lognormal", "mean": 24}
# Efficiencies of the second host's device, which computes a step 1.9 and 3.8 times as long as the first's, and how samples are
# divided.
_SPEEDS: Final = ((0.4, "equal"), (0.4, "auto"), (0.2, "equal"), (0.2, "auto"))


def scenarios(cluster: str | None = None) -> Iterator[Scenario]:
    """One scenario for each case: with real compute on the cores of a `cluster`, else with emulated compute."""
    if cluster is not None:
        for name, given in _REAL.items():
            training = dict(given)
            lengths = {"lengths": _LENGTHS | training.pop("lengths")} if "lengths" in training else {}
            yield _scenario(name, training, cluster, {"total": 32} | lengths, steps=20, compute="real")
        return
    for name, training in _EMULATED.items():
        yield _scenario(name, training)
    for (efficiency, shares), (what, training) in itertools.product(_SPEEDS, (("all parameters", {}), ("LoRA", _LORA))):
        device = {"base": "cpu-core", "name": "slower", "efficiency": efficiency}
        nodes = [{"count": 1}, {"count": 1, "device": device}]
        batch = {"shares": "auto"} if shares == "auto" else {}
        yield _scenario(f"{what}, second host {efficiency}, {shares}", training, {"base": _LAB, "nodes": nodes}, batch)


def _scenario(
    name: str, training: Mapping[str, Any], cluster: str | Mapping[str, Any] = _LAB, batch: Mapping[str, Any] | None = None,
    steps: int = 5, compute: str = "paced",
) -> Scenario:  # fmt: skip
    fields = {
        "model": "gpt-mini",
        "cluster": cluster,
        "strategy": {"kind": "data_parallel", "workers": 2, "bucket": "2 MiB"},
        "batch": {"total": 160, **(batch or {})},
        "steps": steps,
        "compute": compute,
        "training": training,
    }
    scenario = load(fields, _HOSTS.get(training.get("offload", [""])[0], ()))
    return scenario.model_copy(update={"name": name.replace(", ", "-").replace(" ", "-")})


def main(cluster: str | None, rounds: int, words: Sequence[str]) -> None:
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

    chosen = [one for one in scenarios(cluster) if not words or any(word in one.name for word in words)]
    for _ in range(rounds):
        reconcile(chosen, partial(measure, on="netlab" if cluster is None else "local"), None, None, report)
    errors = [abs(predicted_s[name] / statistics.median(times_s) - 1) for name, times_s in found.items() if times_s]
    if errors:
        print(f"median of absolute errors {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("words", nargs="*")
    main(**vars(parser.parse_args()))
