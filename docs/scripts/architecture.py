"""Draws docs/images/architecture.png from the imports of the code: `python docs/scripts/architecture.py`.

Each box is a folder with its number of lines. An arrow from A to B says that modules of A import modules of B; the wider, the
more of them. Where A reaches B by other arrows too, the direct one is left out. Arrows point downwards or along a row, as in
the import contracts of pyproject.toml.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Final

import matplotlib.pyplot as plt
import networkx
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from scaleproof.reports.charts.style import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURE: Final = ROOT / "docs" / "images" / "architecture.png"
# Folders from top to bottom; a folder imports folders of its own row and of the rows below it.
ROWS: Final = (
    ("commands",),
    ("proof",),
    ("reports", "validator"),
    ("simulator.analysis",),
    ("simulator.predict", "simulator.uncertainty"),
    ("simulator.prediction", "simulator.published", "simulator.memory"),
    ("simulator.strategy", "simulator.engine"),
    ("simulator.program", "simulator.run"),
    ("simulator.scenario",),
    ("simulator.captured", "simulator.frameworks"),
    ("simulator.parallelism",),
    ("simulator.cluster",),
    ("simulator.model",),
    ("simulator.common",),
)
_COLOURS: Final = {"commands": PURPLE, "reports": ORANGE, "proof": VERMILLION, "validator": GREEN, "simulator": BLUE}
_BOX: Final = (2.6, 0.62)


def room(module: str) -> str:
    """The folder of a module that the picture shows."""
    known = {name for row in ROWS for name in row}
    parts = module.split(".")
    return next(name for count in (2, 1) if (name := ".".join(parts[:count])) in known)


def modules() -> dict[str, Path]:
    """The file of each module."""
    tops = sorted({name.split(".")[0] for row in ROWS for name in row})
    files = [path.relative_to(ROOT) for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that a file imports, under `if TYPE_CHECKING` too."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("scaleproof."):
            package = node.module.removeprefix("scaleproof.")
            names = {f"{package}.{alias.name}" for alias in node.names}
            found |= {name if name in known else package for name in names}
    return found & set(known)


def main() -> None:
    """Writes the picture."""
    known = modules()
    lines: Counter[str] = Counter()
    arrows: Counter[tuple[str, str]] = Counter()
    for module, path in known.items():
        if module in ("simulator",):
            continue
        lines[room(module)] += len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for imported in imports(path, known) - {"simulator"}:
            arrows[room(module), room(imported)] += room(module) != room(imported)

    level = {name: number for number, row in enumerate(ROWS) for name in row}
    graph = networkx.DiGraph(
        (importer, imported) for (importer, imported), count in arrows.items() if count and level[importer] < level[imported]
    )
    shown = set(networkx.transitive_reduction(graph).edges)
    shown |= {(a, b) for (a, b), count in arrows.items() if count and level[a] == level[b]}

    figure, axes = plt.subplots(figsize=(9, 9))
    places = {}
    for height, row in enumerate(reversed(ROWS)):
        for number, name in enumerate(row):
            places[name] = (3.5 * (number - (len(row) - 1) / 2), 1.35 * height)
    for importer, imported in sorted(shown):
        count = arrows[importer, imported]
        (x0, y0), (x1, y1) = places[importer], places[imported]
        start, end = (x0, y0 - _BOX[1] / 2), (x1, y1 + _BOX[1] / 2)
        bend = 0.0 if abs(y0 - y1) < 1.5 else 0.18 if x0 >= x1 else -0.18
        if y0 == y1:
            side = 1 if x1 > x0 else -1
            start, end, bend = (x0 + side * _BOX[0] / 2, y0), (x1 - side * _BOX[0] / 2, y1), 0.0
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=9, linewidth=0.4 + count**0.5 / 4, color=GREY, alpha=0.7,
                connectionstyle=f"arc3,rad={bend}", zorder=1,
            )
        )  # fmt: skip
    for name, (x, y) in places.items():
        corner = x - _BOX[0] / 2, y - _BOX[1] / 2
        colour = _COLOURS[name.split(".")[0]]
        axes.add_patch(
            FancyBboxPatch(
                corner, *_BOX, boxstyle="round,pad=0.04", facecolor="white", edgecolor=colour, linewidth=1.6, zorder=2
            )
        )
        axes.text(x, y + 0.13, name.replace(".", "/"), ha="center", va="center", color=INK, weight="bold", size=9, zorder=3)
        axes.text(x, y - 0.19, f"{lines[name]:,} lines", ha="center", va="center", color=GREY, size=8, zorder=3)
    axes.set_xlim(-5.6, 5.6)
    axes.set_ylim(-0.7, 1.35 * (len(ROWS) - 1) + 0.7)
    axes.set_axis_off()
    axes.set_facecolor(FAINT)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130, bbox_inches="tight")
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
