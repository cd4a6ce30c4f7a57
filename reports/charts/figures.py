"""Figures of matplotlib that notebooks show by themselves, whether or not pyplot is in use."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from scaleproof.reports.charts.style import WIDTH_IN, png

# pixels per inch of a page
_PAGE_DPI = 100


class NotebookFigure(Figure):
    """A figure that a notebook shows where it is the value of a cell."""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        """The picture and the width, in pixels, at which a notebook shows it."""
        return png(self), {"width": round(WIDTH_IN * _PAGE_DPI)}
