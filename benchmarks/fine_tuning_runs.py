"""Predicted and measured step times of fine-tuning: parts of a model, optimizers, states, hosts, and lengths of samples.

With `emulated`, on two emulated hosts: compute is emulated, and so are the links between hosts (netlab) and between a device
and its host's memory; gradients, sums, gathers and the optimizer's step are real. Needs root and iproute2. With `real`, two
ranks compute on the cores of a cluster file, which `scaleproof calibrate --out FILE --model gpt-mini` writes. Give words of
rows to take those alone.

Run: python benchmarks/fine_tuning_runs.py emulated [WORD ...]
     python benchmarks/fine_tuning_runs.py real FILE [WORD ...]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
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
_FASTER_HOST: Final = {"cluster.node.host": {"link": "200 MB/s"}}
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


def scenarios(cluster: str | None = None, words: Sequence[str] = ()) -> Iterator[Scenario]:
    """One scenario for each case, or for those with one of the words in their names; with real compute on the cores of a
    `cluster`, else with emulated compute."""
    hosts: dict[str, Any] = {"optimizer": _SLOW_HOST, "activations": _FASTER_HOST}
    for name, given in (_EMULATED if cluster is None else _REAL).items():
        if words and not any(word in name for word in words):
            continue
        training = dict(given)
        lengths = {"lengths": _LENGTHS | training.pop("lengths")} if "lengths" in training else {}
        fields = {
            "model": "gpt-mini",
            "cluster": cluster or "netlab-100mbit",
            "strategy": {"kind": "data_parallel", "workers": 2, "bucket": "2 MiB"},
            "batch": {"total": 32 if cluster else 160} | lengths,
            "steps": 20 if cluster else 5,
            "compute": "real" if cluster else "paced",
            "training": training,
        }
        scenario = load(fields, hosts.get(training.get("offload", [""])[0], ()))
        yield scenario.model_copy(update={"name": name.replace(", ", "-").replace(" ", "-")})


def _report(case: ReconciledCase) -> None:
    name, predicted_s = case.scenario.name.replace("-", " "), case.predicted.step_time_s
    if case.measured is None or case.error is None:
        print(f"{name:<38} {1e3 * predicted_s:6.1f} ms  {case.failure}", flush=True)
    else:
        print(
            f"{name:<38} {1e3 * predicted_s:6.1f} ms {1e3 * case.measured.step_time_s:6.1f} ms {case.error:+7.1%}", flush=True
        )


def main(arguments: Sequence[str]) -> None:
    """Prints the table, and the median of the absolute errors."""
    if not arguments or arguments[0] not in ("emulated", "real") or (arguments[0] == "real" and len(arguments) < 2):
        raise SystemExit(__doc__)
    is_real, *rest = arguments[0] == "real", *arguments[1:]
    chosen = list(scenarios(rest[0], rest[1:]) if is_real else scenarios(words=rest))
    print(f"{'trained':<38} predicted    measured   error")
    cases = reconcile(chosen, partial(measure, on="local" if is_real else "netlab"), None, None, _report)
    errors = [abs(case.error) for case in cases if case.error is not None]
    if errors:
        print(f"median of absolute errors {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
