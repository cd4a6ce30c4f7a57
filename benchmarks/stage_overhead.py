"""Host time that torch.distributed.pipelining adds to passes of stages on a processor: `python benchmarks/stage_overhead.py`.

Emulated layers last as long as predicted without software cost, so that what a measured pass takes in addition is the
software's. Two ranks of this machine, which should be quiet. Prints the mean difference in milliseconds for passes of each
kind, by the number of layers and the width of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import numpy as np

from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.record.provenance import cpu_model

MICROBATCHES: Final = 8
MODELS: Final = ((4, 128), (8, 128), (4, 256))  # layers and width
KINDS: Final = ("forward", "backward", "inputs", "weights")


def scenario(schedule: str, layers: int, width: int) -> Scenario:
    """A pipeline of two stages whose layers take the times that are predicted without software cost."""
    ahead = str(schedule != "gpipe").lower()
    strategy = f"{{kind: pipeline, stages: 2, microbatches: {MICROBATCHES}, schedule: {schedule}, overlap_sends: {ahead}}}"
    changes = f"model.layers={layers}", f"model.hidden={width}", f"strategy={strategy}", "batch={total: 32}", "steps=8"
    place = "cluster=netlab-500mbit", "cluster.nodes=2", "framework=gloo-cpu", "framework.host={}"
    return load("netlab-gpipe", [*place, *changes])


def pass_times_s(run: Run, rank: int) -> dict[str, list[float]]:
    """Seconds of a rank's passes by kind. Of two backward passes over a microbatch the first one is for inputs."""
    assert run.spans is not None
    main = run.spans.where((run.spans.stream == Stream.MAIN) & (run.spans.rank == rank) & (run.spans.microbatch >= 0))
    times_s = main.end_s - main.start_s
    found: dict[str, list[float]] = {"forward": times_s[main.phase == Phase.FORWARD].tolist()}
    for step in np.unique(main.step):
        for microbatch in range(MICROBATCHES):
            rows = (main.step == step) & (main.microbatch == microbatch) & (main.phase == Phase.BACKWARD)
            own_s = times_s[rows][np.argsort(main.start_s[rows])].tolist()
            kinds = ("backward",) if len(own_s) == 1 else ("inputs", "weights")
            for kind, time_s in zip(kinds, own_s, strict=True):
                found.setdefault(kind, []).append(time_s)
    return found


def differences() -> Iterator[tuple[str, ...]]:
    """Rows of the table: schedule, layers, width, rank, and milliseconds by kind of pass."""
    # the first stage does not divide its backward passes
    for schedule, ranks in (("gpipe", (0, 1)), ("zb_h1", (1,))):
        for layers, width in MODELS:
            one = scenario(schedule, layers, width)
            predicted, measured = predict(one, interval=False), measure(one, "local", MeasureOptions(timeout_s=60.0))
            for rank in ranks:
                before_s, after_s = pass_times_s(predicted, rank), pass_times_s(measured, rank)
                more = {kind: np.mean(after_s[kind]) - np.mean(before_s[kind]) for kind in after_s}
                cells = [f"{1e3 * more[kind]:.2f}" if kind in more else "" for kind in KINDS]
                yield schedule, str(layers), str(width), str(rank), *cells


def main() -> int:
    """Prints the table."""
    rows = [("schedule", "layers", "width", "rank", *(f"{kind}, ms" for kind in KINDS)), *differences()]
    print("\n".join(table(rows, "<" + ">" * 7)))
    print(f"{cpu_model()}, {datetime.now(UTC):%d %B %Y}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
