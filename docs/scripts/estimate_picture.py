"""Draws docs/images/estimate.png, the picture of docs/background/how-it-estimates.md.

Run: python docs/scripts/estimate_picture.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Patch

from scaleproof.simulator.analysis.planner.estimate import every
from scaleproof.simulator.analysis.planner.estimate.configurations import distinct
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import StageTimes, simulate, windows
from scaleproof.simulator.analysis.planner.space import space
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy.pipeline.schedules import Pass, order

PICTURE: Final = Path(__file__).parents[1] / "images" / "estimate.png"
RANKS, MICROBATCHES, SEND_S, SLOWEST = 4, 8, 0.25, 2
FORWARD_S: Final = (1.0, 1.0, 1.4, 1.0)
INK, LIGHT, BOX = "#22303c", "#c9d3dc", "#eef2f6"
THROUGH, OWN = "#e07b39", "#2f6fae"


def counts() -> dict[str, int]:
    """Numbers of configurations of a plan, and of the distinct rows that their times are computed for."""
    found = every(space(load("megatron-175b-3d-selene", ("batch=1536",)), 1024))
    layers, shape = LayerTimes(found), ("stages", "chunks", "schedule")
    grouped = found.distinct("tensor", "context", "expert", "expert_tensor", "workers", "zero", "bucket", "order", *shape)
    divided = found.distinct("tensor", "context", "workers", "order", "microbatches", *shape)
    return {
        "configurations": len(found),
        "layers": len(layers.bound),
        "passes": len(distinct(divided.code, layers.code)),
        "sync": len(grouped),
        "shapes": len(found.distinct(*shape)),
    }


def box(ax: Axes, x: float, y: float, size: tuple[float, float], text: tuple[str, str]) -> None:
    """A box around (x, y) with a heading and lines below it."""
    width, height = size
    corner = x - width / 2, y - height / 2
    ax.add_patch(FancyBboxPatch(corner, width, height, boxstyle="round,pad=0.2,rounding_size=0.8", fc=BOX, ec=INK, lw=1))
    lines = text[1].count("\n") + 1
    ax.text(x, y + 1.25 * lines, text[0], ha="center", va="center", fontsize=9.5, weight="bold", color=INK)
    ax.text(x, y - 1.3, text[1], ha="center", va="center", fontsize=8.2, color=INK, linespacing=1.35)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arrow between two points."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0})


def flow(ax: Axes) -> None:
    """Configurations, what is computed once for many of them, and how it is combined."""
    number = counts()
    ax.set(xlim=(0, 100), ylim=(0, 34))
    ax.axis("off")
    size = 21.0, 8.0
    total, shapes = f"{number['configurations']:,}", f"{number['shapes']:,} shapes"
    box(ax, 11, 17, size, ("configurations", f"{total} rows of columns\nconfigurations"))
    box(ax, 37, 28, size, ("layer times", f"{number['layers']:,} distinct combinations\nlayer_times"))
    box(ax, 37, 17, size, ("messages", "by route and size\ntransfers"))
    box(ax, 37, 6, size, ("gradient synchronisation", "patterns × groups of ranks\ngradient_sync"))
    box(ax, 63, 22.5, size, ("passes of a step", f"{number['passes']:,} rows of {shapes}\npipeline_times"))
    box(ax, 63, 6, size, ("collectives of a step", f"{number['sync']:,} rows of {shapes}\nstep_times"))
    box(ax, 89, 15, size, ("step times", f"expected and least, {total} each\nstep_times"))
    for y in (28, 17, 6):
        arrow(ax, (22, 17), (26, y))
    for start, end in ((28, 23.5), (17, 21.5)):
        arrow(ax, (48, start), (52, end))
    arrow(ax, (48, 6), (52, 6))
    arrow(ax, (74, 22.5), (78, 16.5))
    arrow(ax, (74, 6), (78, 13.5))
    ax.set_title("Each part is computed once for all configurations that share it", loc="left", fontsize=11, color=INK)


def stage_times() -> StageTimes:
    """Stages of the lower picture, of which one is slower."""
    forward_s = np.array(FORWARD_S)[:, None]
    sends_s = np.array([*[SEND_S] * (RANKS - 1), 0.0])[:, None]
    return StageTimes(forward_s, 2 * forward_s, sends_s, np.array([MICROBATCHES]), RANKS, True)


def pass_ends() -> dict[tuple[int, bool, int], float]:
    """End of each pass in seconds, by rank, whether it is a forward pass, and microbatch."""
    passes = order("1f1b", RANKS, MICROBATCHES, 1)
    rows = [
        [
            (kind == Pass.FORWARD, microbatch)
            for kind, microbatch, slot in zip(kinds, microbatches, slots, strict=True)
            if slot >= 0
        ]
        for kinds, microbatches, slots in zip(passes.kind, passes.microbatch, passes.slot, strict=True)
    ]
    ends: dict[tuple[int, bool, int], float] = {}
    free_s, position = [0.0] * RANKS, [0] * RANKS
    while any(position[rank] < len(rows[rank]) for rank in range(RANKS)):
        for rank in range(RANKS):
            while position[rank] < len(rows[rank]):
                is_forward, microbatch = rows[rank][position[rank]]
                source = rank - 1 if is_forward else rank + 1
                is_first = source in (-1, RANKS)
                if not is_first and (source, is_forward, microbatch) not in ends:
                    break
                ready_s = 0.0 if is_first else ends[source, is_forward, microbatch] + SEND_S
                free_s[rank] = max(free_s[rank], ready_s) + FORWARD_S[rank] * (1 if is_forward else 2)
                ends[rank, bool(is_forward), int(microbatch)] = free_s[rank]
                position[rank] += 1
    return ends


def kind_of_path(rank: int, is_forward: bool, microbatch: int, starts: bool) -> str:
    """Color of a pass: part of the way through all stages, of the slowest rank's own work, or of neither."""
    last = MICROBATCHES - 1
    if is_forward and microbatch == 0:
        return THROUGH
    if not is_forward and ((microbatch == 0 and rank >= SLOWEST) or (microbatch == last and rank < SLOWEST)):
        return THROUGH
    return OWN if rank == SLOWEST and starts else LIGHT


def pipeline(ax: Axes) -> None:
    """A step of 1F1B, with the path that its closed form adds up."""
    ends, stages = pass_ends(), stage_times()
    first_back_s = ends[SLOWEST, False, 0]
    for (rank, is_forward, microbatch), end_s in ends.items():
        took_s = FORWARD_S[rank] * (1 if is_forward else 2)
        color = kind_of_path(rank, is_forward, microbatch, end_s > first_back_s)
        ax.barh(rank, took_s, left=end_s - took_s, height=0.78, color=color, edgecolor="white", lw=1)
        ink = INK if color == LIGHT else "white"
        label = f"{'F' if is_forward else 'B'}{microbatch}"
        ax.text(end_s - took_s / 2, rank, label, ha="center", va="center", fontsize=7.5, color=ink)
    last = MICROBATCHES - 1
    for rank, is_forward, microbatch in (
        *((r, True, 0) for r in range(RANKS - 1)),
        (RANKS - 1, False, 0),
        *((r, False, last) for r in range(SLOWEST, 0, -1)),
    ):
        end_s, other = ends[rank, is_forward, microbatch], rank + 1 if is_forward else rank - 1
        arrow(ax, (end_s, rank), (end_s + SEND_S, other))
    expected, least = (found[0, 0] for found in windows("1f1b", stages, [0]))
    simulated = simulate("1f1b", stages).window_s[0, 0]
    ax.set_yticks(range(RANKS), [f"rank {rank}" for rank in range(RANKS)], fontsize=8.5)
    ax.invert_yaxis()
    ax.set(xlabel="seconds", xlim=(0, max(ends.values()) * 1.005))
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    title = f"1F1B: lower bound {least:.2f} s, closed form {expected:.2f} s, simulated {simulated:.2f} s"
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    through_s = stages.round_trip_s.sum()
    handles = [
        Patch(color=THROUGH, label=f"way through all stages and back, {through_s:.2f} s"),
        Patch(color=OWN, label=f"other passes of the slowest rank, {least - through_s:.2f} s"),
        Patch(color=LIGHT, label="not on the longest path"),
    ]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=3, fontsize=8.5, frameon=False)
    waits_s = ends[SLOWEST, False, MICROBATCHES - 1] - 2 * FORWARD_S[SLOWEST]
    ax.annotate(
        f"{simulated - least:.2f} s that the bound neglects:\nrank {SLOWEST} waits\nfor microbatch {last}",
        (waits_s - (simulated - least) / 2, SLOWEST + 0.35), (0.84, 0.05), textcoords="axes fraction", ha="left", fontsize=8.5,
        color=INK, arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.8},
    )  # fmt: skip


def picture() -> None:
    """Draws both pictures, one above the other."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 7.4), height_ratios=(1.15, 1), layout="constrained")
    flow(above)
    pipeline(below)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    picture()
