"""Small files in place of checkpoints: they exist, can be renamed, and what was saved is read back from them within a capture.

Values of a capture are not those of training, so that a file with them would be worthless, and could replace a real one. What
is saved is kept in the folder of the capture, with few values; files of the script only name it. Files that existed before
stay as they are, and those of the capture are removed when it ends.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import torch

from scaleproof.validator.capture.backend import replace_functions
from scaleproof.validator.capture.communication.mailbox import PATIENCE_S, wait_for

_MARK: Final = b"scaleproof capture, which writes no checkpoint: "
_CONTENT: Final = "saved-{}.pickle"
_WRITTEN: Final = "written-{}.txt"
# Most elements of a tensor whose values are kept.
_MOST_KEPT: Final = 1 << 10
# How a tensor on a device is placed: None for its own.
Placing = Callable[[torch.device], torch.device]
# What `SavedFiles.read` returns for a file that is not one of a capture.
NO_CONTENT: Final = object()


class SavedFiles:
    """The files of a rank. folder: of all ranks of a capture."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank, self._written = folder, rank, folder / _WRITTEN.format(rank)

    def install(self) -> None:
        """Makes renamed files leave those alone that are not of this capture."""
        for name in ("rename", "replace"):
            replace_functions(os, **{name: functools.partial(self._renamed, getattr(os, name))})

    def write(self, target: Any, content: Any) -> None:
        """Writes a file that stands for `content`. target: its path, or the open file. Raises OSError as `open` does."""
        name = uuid.uuid4().hex
        with (self._folder / _CONTENT.format(name)).open("wb") as file:
            _Pickler(file).dump(content)
        mark = _MARK + name.encode() + b"\n"
        if hasattr(target, "write"):
            target.write(mark)
            self._note(getattr(target, "name", None))
        elif not os.path.exists(target) or _is_marked(target):
            Path(target).write_bytes(mark)
            self._note(target)

    def make_folder(self, path: Any) -> None:
        """Makes a folder of files, which is removed with them."""
        if not os.path.exists(path):
            Path(path).mkdir(parents=True)
            self._note(path)

    def read(self, source: Any, placed: Placing) -> Any:
        """What was saved in a file, with tensors where `placed` puts them; tensors without values but few. `NO_CONTENT` if the
        file is not one of a capture. source: its path, or the open file. Raises FileNotFoundError for one of an
        earlier capture."""
        if isinstance(source, (str, os.PathLike)):
            # the first rank, for which no barrier waits, may write it
            wait_for(source, self._folder, 0, PATIENCE_S * (self._rank != 0))
        mark = _first_bytes(source)
        if not mark.startswith(_MARK):
            return NO_CONTENT
        path = self._folder / _CONTENT.format(mark[len(_MARK) :].strip().decode("ascii", "replace"))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "an earlier capture has not written", str(source))
        with path.open("rb") as file:
            return _Unpickler(file, placed).load()

    def _note(self, path: Any) -> None:
        if isinstance(path, (str, os.PathLike)):
            with self._written.open("a", encoding="utf-8") as file:
                file.write(f"{os.path.abspath(path)}\n")

    def _renamed(self, rename: Callable[..., None], src: Any, dst: Any, **keywords: Any) -> None:
        own = os.path.isfile(src) and _is_marked(src)
        if own and os.path.exists(dst) and not _is_marked(dst):
            os.unlink(src)
            return
        rename(src, dst, **keywords)
        self._note(dst if own or os.path.isdir(dst) else None)


def remove_written(folder: Path) -> None:
    """Removes the files of a capture, and folders that are empty without them."""
    for listed in folder.glob(_WRITTEN.format("*")):
        for path in map(Path, reversed(listed.read_text(encoding="utf-8").splitlines())):
            within = sorted(path.rglob("*"), reverse=True) if path.is_dir() else []
            for one in (*within, path):
                with contextlib.suppress(OSError):
                    if one.is_file() and _is_marked(one):
                        one.unlink()
            if path.is_dir():
                with contextlib.suppress(OSError):
                    path.rmdir()


def _is_marked(path: Any) -> bool:
    """Whether a file stands for a checkpoint of a capture."""
    return _first_bytes(path).startswith(_MARK)


def _first_bytes(source: Any) -> bytes:
    """The beginning of a file, which is as far as before if it is open."""
    length = len(_MARK) + 33
    if hasattr(source, "read"):
        with contextlib.suppress(OSError, ValueError):
            place = source.tell()
            begin = source.read(length)
            source.seek(place)
            return begin if isinstance(begin, bytes) else b""
        return b""
    with contextlib.suppress(OSError), open(source, "rb") as file:
        return file.read(length)
    return b""


class _Pickler(pickle.Pickler):
    """Leaves out most values of tensors."""

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or hasattr(value, "_local_tensor"):
            return None
        data = value.detach()
        kept = data.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() if _has_few(data) else None
        layout = tuple(data.size()), tuple(data.stride()), data.dtype, str(data.device)
        return *layout, kept, isinstance(value, torch.nn.Parameter), value.requires_grad


def _has_few(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are kept."""
    return tensor.numel() <= _MOST_KEPT and tensor.is_contiguous()


class _Unpickler(pickle.Unpickler):  # written by ranks of the same capture
    """Makes tensors without values, or with those that were kept."""

    def __init__(self, file: IO[bytes], placed: Placing) -> None:
        super().__init__(file)
        self._placed = placed

    def persistent_load(self, pid: Any) -> torch.Tensor:
        size, stride, dtype, device, kept, is_parameter, requires_grad = pid
        if kept:
            tensor = torch.frombuffer(bytearray(kept), dtype=dtype).reshape(size)
        else:
            tensor = torch.empty_strided(size, stride, dtype=dtype)
        tensor = tensor.to(self._placed(torch.device(device)))
        return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def placing(map_location: Any) -> Placing:
    """Where `map_location` of `torch.load` puts tensors."""
    if map_location is None:
        return lambda device: device
    if isinstance(map_location, dict):
        return lambda device: torch.device(map_location.get(str(device), device))
    if callable(map_location):
        empty = torch.empty(0).untyped_storage()

        def placed(device: torch.device) -> torch.device:
            result = map_location(empty, str(device))
            return result.device if result is not None else device

        return placed
    return lambda device: torch.device(map_location)


def is_memory(target: Any) -> bool:
    """Whether something that is saved to is no file, but memory."""
    return isinstance(target, io.BytesIO)
