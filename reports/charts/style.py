"""Colours, type and rendering of all figures."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, Color Universal Design (2008): distinguishable with every common kind of colour blindness.
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#8A8F98"
INK: Final = "#22252A"
FAINT: Final = "#D5D8DD"

# Colours of what time and memory are used for, the same on all pages and in the explorer. BLUE, which is the first series', is
# none of them.
COMPUTE: Final = GREEN
EXPOSED_COMMUNICATION: Final = ORANGE
BUBBLE: Final = GREY
UNMODELLED: Final = "#5B6069"
CAUSE_COLOURS: Final = {
    "compute": COMPUTE,
    "slowest_rank": YELLOW,
    "exposed_communication": EXPOSED_COMMUNICATION,
    "bubble": BUBBLE,
    "waiting_for_server": "#B39B00",
    "waiting_for_ranks": FAINT,
    "waiting_for_input": SKY,
    "other": UNMODELLED,
}
# By parallel dimension, where it is known: gradients and shards of replicas, activations of a layer, of a sequence, of stages.
COMMUNICATION_COLOURS: Final = {
    "DP": EXPOSED_COMMUNICATION,
    "ZeRO": "#C98A00",
    "FSDP": "#F3C667",
    "TP": VERMILLION,
    "SP": "#EFA06B",
    "CP": "#8F3D00",
    "EP": "#A2507C",
    "PP": PURPLE,
    "MP": "#E4B5CF",
    "embedding": "#6B4A00",
    "PS": "#7B5EA7",
    "table": "#C2185B",
    "feature": "#5C6BC0",
    "other": EXPOSED_COMMUNICATION,
}
PHASE_COLOURS: Final = {
    "forward": "#7FCBB4",
    "backward": COMPUTE,
    "gradients of weights": "#00614A",
    "optimizer": INK,
    "synchronise": EXPOSED_COMMUNICATION,
    "send": VERMILLION,
    "receive": PURPLE,
    "wait": CAUSE_COLOURS["waiting_for_server"],
    "input": CAUSE_COLOURS["waiting_for_input"],
    "waiting for other ranks": CAUSE_COLOURS["waiting_for_ranks"],
}
# Holders of memory with related contents have one hue.
MEMORY_COLOURS: Final = {
    "parameters": SKY,
    "gradients": ORANGE,
    "master_parameters": "#A9D9F4",
    "optimizer_states": PURPLE,
    "activations": GREEN,
    "logits": "#7FCBB4",
    "recomputed": YELLOW,
    "working": "#B39B00",
    "communication": VERMILLION,
    "workspace": "#EFB48A",
    "fragmentation": FAINT,
    "library": "#B4B9C0",
    "context": GREY,
}

Format = Literal["png", "svg"]

WIDTH_IN: Final = 8.0
_DPI: Final = 200  # twice what a page shows at this width
_PARAMETERS: Final[Any] = {
    "text.parse_math": False,  # names come from files: a $ is a $
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E9EBEE",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.h_pad": 0.06,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "scaleproof",
}


class Drawn(NamedTuple):
    """A figure as PNG and SVG."""

    png: bytes
    svg: bytes


def render(height_in: float, draw: Callable[[Figure], object], form: Format = "png", description: str = "") -> bytes:
    """The figure that `draw` fills, WIDTH_IN wide and `height_in` high; the same figure is always the same bytes.

    description: kept in the file, for programs.
    """
    return _rendered(height_in, draw, (form,), description)[0]


def render_both(height_in: float, draw: Callable[[Figure], object]) -> Drawn:
    """A figure as PNG and SVG."""
    return Drawn(*_rendered(height_in, draw, ("png", "svg"), ""))


def _rendered(height_in: float, draw: Callable[[Figure], object], forms: Sequence[Format], description: str) -> list[bytes]:
    import matplotlib

    with matplotlib.rc_context(_PARAMETERS), warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes; the tables have it
        warnings.filterwarnings("ignore", message="Glyph")
        figure = figure_of(height_in, draw)
        result = []
        for form in forms:
            result.append(_saved(figure, form, description))
            # keep the layout of the first rendering
            figure.set_layout_engine(None)
    return result


def figure_of(height_in: float, draw: Callable[[Figure], object]) -> Figure:
    """The figure that `draw` fills, WIDTH_IN wide and `height_in` high, not rendered."""
    import matplotlib

    from scaleproof.reports.charts.figures import NotebookFigure

    with matplotlib.rc_context(_PARAMETERS):
        figure = NotebookFigure(figsize=(WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
        draw(figure)
    return figure


def _saved(figure: Figure, form: Format, description: str) -> bytes:
    if form == "png":
        from scaleproof.reports.charts.figures import png

        return png(figure, description)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Creator": None, "Date": None, "Description": description})
    return buffer.getvalue()


def paler(colour: str, share: float) -> str:
    """A colour such as '#0072B2' mixed with a share of white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)


def title(axes: Axes, finding: str) -> None:
    """Sets the finding of a figure as its title."""
    axes.set_title(finding, pad=8)


def label(text: str, longest: int = 28) -> str:
    """`text` on one line, without what cannot be printed, cut at `longest` characters."""
    line = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return line if len(line) <= longest else line[: longest - 1] + "…"
