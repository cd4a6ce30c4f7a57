"""What measuring costs: steps with the recorder against steps with one that does nothing, in turn, in the same training; and
what as many spans take of a step when nothing else is done.

Run: python benchmarks/recorder.py
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
from contextlib import nullcontext
from typing import Final

import numpy as np
import torch.distributed as dist

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.launch.rank import here
from scaleproof.validator.record.recorder import RAW_SPAN, Recorder
from scaleproof.validator.strategy import create
from scaleproof.validator.strategy.base import Context

_WARMUP = 3
_ALONE = 300
# What is trained, steps in a block, and pairs of blocks. A step of the demo's is long enough to be a block.
_CASES = {
    "the demo's GPT, ring of two": (("ring-2",), 1, 60),
    "the demo's GPT, pipeline of two": (("pipeline-2",), 1, 60),
    "the demo's GPT, sharded fully on two": (("ring-2", "training.zero=3"), 1, 20),
    "the demo's GPT, worker and server": (("ring-2", "strategy={kind: parameter_server, workers: 1}"), 1, 20),
    "the demo's GPT, tensors cut in two": (("ring-2", "strategy={kind: hybrid, tensor: 2}"), 1, 20),
    "the worst: two numbers in, two out": (
        (
            "ring-2", "model={kind: mlp, layers: 2, inputs: 2, hidden: 2, outputs: 2}", "batch=2",
            "strategy={kind: data_parallel, workers: 2, overlap: false}",
        ), 20, 100,
    ),
}  # fmt: skip


# Methods of the recorder that return nothing, and those that return contexts.
_CALLS: Final = ("add", "enter", "begin_step", "end_step")
_CONTEXTS: Final = ("span", "interruption", "waiting")


class Switched(Recorder):
    """Recorder that can be switched off."""

    def switch(self, on: bool) -> None:
        """Turns recording on or off; off, every call does nothing."""
        own = self.__dict__
        for name in (*_CALLS, *_CONTEXTS):
            own.pop(name, None)
        own["now"] = self._clock.mark
        if not on:
            own["now"] = lambda: 0.0
            own |= dict.fromkeys(_CALLS, lambda *_, **__: None)
            own |= dict.fromkeys(_CONTEXTS, lambda *_, **__: nullcontext())


def block_times(scenario: Scenario, steps: int, pairs: int) -> dict[str, object]:
    """pairs_s: of each pair of blocks, with the recorder and without, on this rank; which comes first is turned round. alone_s:
    of the recorder by itself with the spans of one step."""
    me, total = here(), _WARMUP + 2 * pairs * steps
    with tempfile.TemporaryFile(buffering=0) as file:
        recorder = Switched(me.status, file.write)
        trainer = create(Context(scenario, me.rank, me.device, recorder, total), scenario.strategy)
        gc.freeze()
        index = 0

        def block(on: bool, count: int) -> float:
            nonlocal index
            recorder.switch(on)
            dist.barrier()
            begin_s = time.perf_counter()
            for _ in range(count):
                recorder.begin_step(index)
                trainer.take(index)
                recorder.end_step()
                index += 1
            dist.barrier()
            return time.perf_counter() - begin_s

        block(True, _WARMUP)
        spans = file.tell() // RAW_SPAN.itemsize // _WARMUP - 1
        times_s = []
        for pair in range(pairs):
            first = pair % 2 == 0
            by_recorder = {on: block(on, steps) for on in (first, not first)}
            times_s.append([by_recorder[True], by_recorder[False]])
        recorder.switch(True)
        return {"pairs_s": times_s, "spans": spans, "alone_s": alone_s(recorder, spans)}


def alone_s(recorder: Recorder, spans: int) -> float:
    """Median seconds of steps that only record spans."""
    times_s = []
    for step in range(_ALONE):
        begin_s = time.perf_counter()
        recorder.begin_step(step)
        for _ in range(spans):
            with recorder.span(Phase.FORWARD, microbatch=1):
                pass
        recorder.end_step()
        times_s.append(time.perf_counter() - begin_s)
    return float(np.median(times_s))


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The median and its 95 % interval for any distribution."""
    ordered, count = np.sort(values), len(values)
    place = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)
    return float(np.median(ordered)), float(ordered[place]), float(ordered[count - 1 - place])


def main() -> None:
    """Prints the ratio of step times with the recorder and without, less one."""
    # ranks import what they run by its name, which this script has only where it is imported
    from recorder import block_times

    print(f"{'':<36} {'a step':>9} {'longer by':>10} {'to 95 %':^17} {'spans':>6} {'alone':>8}")
    for name, ((scenario, *overrides), steps, pairs) in _CASES.items():
        measured = run_on_ranks(block_times, 2, load(scenario, overrides), steps, pairs, timeout_s=300.0)[0]
        times_s = np.array(measured["pairs_s"])
        ratio, low, high = (value - 1 for value in median_interval(times_s[:, 0] / times_s[:, 1]))
        step_s = float(np.median(times_s[:, 1])) / steps
        interval = f"{low:.1%} to {high:.1%}"
        alone = measured["alone_s"] / step_s
        print(f"{name:<36} {step_s * 1e3:>6.2f} ms {ratio:>10.2%} {interval:^17} {measured['spans']:>6} {alone:>8.3%}")


if __name__ == "__main__":
    main()
