"""Size of a PNG picture."""

from __future__ import annotations

import struct


def size_px(png: bytes) -> tuple[int, int]:
    """Width and height that the header of a PNG gives."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height
