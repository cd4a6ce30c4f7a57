"""What a prediction takes in process once everything is warm: GPT-3 175B as a hybrid on 1,024 GPUs, and its parts; then whole
predictions of ranks that all differ; then Llama 3 405B on pods that are joined by a seventh of their links, and on one switch.

Run: python benchmarks/predict.py
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from scaleproof.simulator.engine import simulate_steady
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict, predicted_run
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.prediction.scaling import compared, forget
from scaleproof.simulator.prediction.steps import STEPS
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.prediction_interval import of_response
from scaleproof.simulator.uncertainty.response import response_of_scenario

_RUNS = 20
_STRATEGY = "{kind: hybrid, tensor: 8, sequence_parallel: true, stages: 16, workers: 8, microbatches: 32, bucket: 200 MiB}"
_LLAMA = "{kind: hybrid, workers: 128, stages: 16, tensor: 8, sequence_parallel: true, microbatches: 16, bucket: 10 GiB}"
_JITTERED = {
    "Megatron 175B, 2,048 GPUs": (
        "megatron-175b-3d-selene", ("cluster.nodes=2048", "unevenness.compute_jitter=0.02", "strategy.workers=32"),
    ),
    "Llama 3 405B, 16,384 GPUs, 1 step": (
        "gpt3-175b-hybrid-selene",
        (
            "model=llama-3-405b", "cluster=meta-h100", "cluster.nodes=2048", f"strategy={_LLAMA}", "batch=2048",
            "training.zero=1", "unevenness.compute_jitter=0.05", "steps=1",
        ),
    ),
}  # fmt: skip
_TREES = {
    "Llama 3 405B, 16,384 GPUs, 7:1 tree": ("cluster=meta-h100",),
    "Llama 3 405B, 16,384 GPUs, one switch": (),
}
_CHANGES = (f"strategy={_STRATEGY}", "batch=256", "training.zero=1", "training.recompute=full")


def fastest_ms(run: Callable[[], object], times: int = _RUNS) -> float:
    """Milliseconds of the fastest of several runs."""
    best_s = float("inf")
    for _ in range(times):
        start_s = time.perf_counter()
        run()
        best_s = min(best_s, time.perf_counter() - start_s)
    return 1e3 * best_s


def main() -> None:
    """Prints a line for the whole, and one for each part."""
    scenario = load("gpt3-175b-hybrid-selene", _CHANGES)

    def forgetful() -> None:
        forget()
        predict(scenario)

    program = compile_step(scenario.strategy, job_of(scenario))
    timeline = simulate_steady(program, STEPS)
    run, response = predict(scenario), response_of_scenario(scenario)
    print(f"{scenario.strategy.ranks:,} GPUs, {len(program):,} tasks, {len(run.spans or ()):,} spans")
    for name, part in {
        "predict, with its interval": lambda: predict(scenario),
        "predict without one": lambda: predict(scenario, interval=False),
        "predict, baselines anew": forgetful,
        "  compile": lambda: compile_step(scenario.strategy, job_of(scenario)),
        "  simulate": lambda: simulate_steady(program, STEPS),
        "  response to slower parts": lambda: response_of_scenario(scenario),
        "  interval": lambda: of_response(response),
        "  spans, breakdown, communication": lambda: predicted_run(timeline, scenario="", strategy="", samples=1),
        "  efficiency": lambda: compared(run, scenario),
        "  tokens, FLOPs, energy, cost": lambda: accounted(run, scenario),
        "  memory": lambda: memory(scenario),
    }.items():
        print(f"{name:<34} {fastest_ms(part):8.2f} ms")
    for name, (jittered, changes) in _JITTERED.items():
        uneven = load(jittered, changes)
        print(f"{name:<34} {fastest_ms(functools.partial(predict, uneven), 3):8.0f} ms")
    for name, changes in _TREES.items():
        pretraining = functools.partial(predict, load("llama3-405b-54-days", changes))
        first_ms, next_ms = fastest_ms(pretraining, 1), fastest_ms(pretraining, 3)
        print(f"{name:<38} {first_ms:8.0f} ms the first time, then {next_ms:.0f} ms")


if __name__ == "__main__":
    main()
