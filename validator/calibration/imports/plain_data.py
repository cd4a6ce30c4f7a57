"""Plain data that PyTorch writes as pickles or JSON: numbers, texts, lists and mappings.

A pickle may run any code; this reader refuses everything that names a class or a function.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.reading import as_list, as_number, read_bytes

# Files of frames that are not the program's: PyTorch's, and those of C++.
_OF_LIBRARY: Final = re.compile(r"/torch/|^\?\?|\.(?:cpp|cc|c|h|so)\b")


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data alone."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuses."""
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which plain data does not")


def read(path: Path, expected: str) -> Any:
    """The content of a file. Raises InputError, naming what was expected, if it is no plain data or cut off."""
    content = read_bytes(path)
    try:
        if content[:1] in (b"{", b"["):
            return json.loads(content)
        return _PlainUnpickler(io.BytesIO(content)).load()
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg}); expected {expected}") from None
    except Exception as error:
        if isinstance(error, EOFError) or re.search("truncated|exhausted", str(error)):
            raise InputError(f"{path}: cut off after {len(content):,} bytes; copy it again") from None
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error}); expected {expected}") from None


def as_mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def rank_of(path: Path, document: object) -> int:
    """The rank that a document or the end of its file's name reports; -1 if unknown."""
    named = re.search(r"rank\D?(\d+)", path.name) or re.search(r"(\d+)(?:\.(?:json|pkl|pickle|gz))*$", path.name)
    number = as_number(as_mapping(document).get("rank"))
    return int(number) if number is not None else int(named[1]) if named else -1


def place_of(entry: object) -> str:
    """The innermost line of the program in the frames of an entry, 'train.py:88', without lines of PyTorch; "" if unknown."""
    frames = [frame for frame in map(as_mapping, as_list(as_mapping(entry).get("frames"))) if frame.get("filename")]
    frame = next((one for one in frames if not _OF_LIBRARY.search(str(one["filename"]))), frames[0] if frames else None)
    return f"{Path(str(frame['filename'])).name}:{frame.get('line', '')}" if frame else ""
