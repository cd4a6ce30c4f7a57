"""Figures of matplotlib that notebooks show by themselves, whether or not pyplot is in use, and their pictures."""

from __future__ import annotations

import io
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# pixels per inch of a page
_PAGE_DPI: Final = 100
_COLOURS: Final = 128  # in a picture, including blended edges


class NotebookFigure(Figure):
    """A figure that a notebook shows where it is the value of a cell."""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        """The picture and the width, in pixels, at which a notebook shows it."""
        return png(self), {"width": round(self.get_figwidth() * _PAGE_DPI)}


def png(figure: Figure, description: str = "") -> bytes:
    """A picture reduced to a palette, a third of the bytes."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    # as savefig does, but drawn once and not encoded twice
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    said = PngInfo()
    said.add_text("Description", description)
    buffer = io.BytesIO()
    # keep colours that cover little, such as those of a legend
    few = pixels.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(buffer, "png", optimize=True, pnginfo=said if description else None)
    return buffer.getvalue()
