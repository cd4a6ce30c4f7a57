"""Draws the pictures of docs/gallery.md and docs/reference/devices.md from current predictions.

Run: python docs/scripts/gallery.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from scaleproof.reports.charts import style
from scaleproof.reports.charts.device import rate_chart
from scaleproof.reports.charts.still import still
from scaleproof.reports.descriptions.crossover import picture
from scaleproof.simulator.analysis.crossover.crossover import crossover
from scaleproof.simulator.analysis.goodput import goodput
from scaleproof.simulator.analysis.stragglers import uneven
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.kernels.figures import measured_kernels, product_series

IMAGES: Final = Path(__file__).parents[1] / "images"
DEVICE: Final = Path(__file__).parents[1] / "images" / "device.png"
FEW_SPARES: Final = ("reliability.spares=8", "reliability.repair=2 d")
FLEETS: Final = {
    "always a spare node": (),
    "8 spares, wait": FEW_SPARES,
    "8 spares, shrink": (*FEW_SPARES, "reliability.shortage=shrink"),
}
LOST: Final = {
    "detection": style.ORANGE,
    "restart": style.SKY,
    "waiting for nodes": style.VERMILLION,
    "checkpoints": style.GREEN,
    "lost work": style.PURPLE,
    "fewer workers": style.YELLOW,
}
FRAMEWORKS: Final = ("ideal", "torchtitan-compiled", "torchtitan", "pytorch-fsdp2", "deepspeed-zero", "jax-maxtext")


def crossover_map() -> bytes:
    """The map of docs/guides/what-if.md."""
    overrides = ["framework=ideal", "cluster=aws-p2-xlarge"]
    found = crossover("resnet50-ring-p100", y="workers=4,16,64", points=5, overrides=overrides)
    return still(picture(found)).png


def device_rates() -> bytes:
    """Predicted and measured rates of products of docs/reference/devices.md."""
    device = load_device("h100-80gb-sxm")
    series = product_series(device, measured_kernels(device, None))
    return still(rate_chart("products", device, series)).png


def lost_time() -> bytes:
    """The parts of 54 days that are not training, with many and with few spare nodes."""
    found = {name: goodput(load("llama3-405b-54-days", sets), 54) for name, sets in FLEETS.items()}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, result in enumerate(found.values()):
            start = 0.0
            for part, colour in LOST.items():
                share = 100 * result.shares.get(part, (0.0,))[0]
                axes.barh(row, share, left=start, color=colour, height=0.6, label=part if row == 0 else None)
                start += share
            axes.text(start + 0.5, row, f"{100 * result.ratio:.1f} % effective", va="center")
        axes.set_yticks(range(len(found)), list(found))
        axes.invert_yaxis()
        axes.set_xlim(0, 50)
        axes.set_xlabel("share of 54 days that is not training, %")
        style.title(axes, "Llama 3 405B on 16,384 GPUs: too few spare nodes cost more than all failures")
        figure.legend(loc="outside lower center", ncols=6)

    return style.render(2.6, draw)


def perturbations() -> bytes:
    """Throughput that each consistency model keeps under each perturbation."""
    found = uneven(load("resnet50-uneven-a100"))
    kinds, ways = [kind for kind in found.cells if kind != "even"], list(found.ways)
    kept = [[100 * (found.cells[kind][way].of_even or 0.0) for way in ways] for kind in kinds]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        shown: Any = kept
        axes.imshow(shown, cmap="viridis", vmin=30, vmax=100, aspect="auto")
        for row, values in enumerate(kept):
            for column, value in enumerate(values):
                axes.text(column, row, f"{value:.0f} %", ha="center", va="center", color="white" if value < 75 else style.INK)
        axes.set_xticks(range(len(ways)), ways)
        axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
        axes.grid(visible=False)
        style.title(axes, "Throughput kept, by perturbation and consistency model: ResNet-50 on eight A100")

    return style.render(2.9, draw)


def software() -> bytes:
    """Step time of one scenario with several frameworks."""
    runs = {name: predict(load("llama-2-7b-fsdp-a100", [f"framework={name}"])) for name in FRAMEWORKS}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        times = [run.step_time_s for run in runs.values()]
        ranges = [run.prediction_interval_s or (run.step_time_s, run.step_time_s) for run in runs.values()]
        below = [time - low for time, (low, _) in zip(times, ranges, strict=True)]
        above = [high - time for time, (_, high) in zip(times, ranges, strict=True)]
        axes.barh(list(runs), times, color=style.BLUE, height=0.6, xerr=[below, above], ecolor=style.INK, capsize=3)
        axes.invert_yaxis()
        axes.set_xlabel("step time, s (lines: 90 % intervals)")
        style.title(axes, "Llama 2 7B on 64 A100 with ZeRO-3, by framework; ideal: no software costs")

    return style.render(2.6, draw)


PICTURES: Final[dict[str, Callable[[], bytes]]] = {
    "crossover.png": crossover_map,
    "goodput.png": lost_time,
    "stragglers.png": perturbations,
    "frameworks.png": software,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        write_atomically(IMAGES / name, draw())
        print(IMAGES / name)
    write_atomically(DEVICE, device_rates())
    print(DEVICE)
