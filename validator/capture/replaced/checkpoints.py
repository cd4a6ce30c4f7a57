"""Checkpoints of a capture: tensors move between host and device as they would, and files in their place are small."""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils._pytree import tree_leaves

from scaleproof.validator.capture.backend import replace_functions
from scaleproof.validator.capture.replaced.files import NO_CONTENT, SavedFiles, is_memory, placing
from scaleproof.validator.capture.steps import local_part
from scaleproof.validator.capture.trace import RankTrace

_SAVES: Final = "saves a checkpoint, which a capture does not write"
_LOADS: Final = "loads a checkpoint, whose values a capture does not read"


class Checkpoints:
    """Replaces what saves and loads checkpoints. trace: gets the notes for users. files: in place of checkpoints."""

    def __init__(self, trace: RankTrace, files: SavedFiles, rank: int) -> None:
        self._trace, self._files, self._rank = trace, files, rank
        self._save, self._load = torch.save, torch.load

    def install(self) -> None:
        """Replaces it."""
        self._files.install()
        replace_functions(torch, save=self._saved, load=self._loaded)
        saves = dict.fromkeys(("save", "save_state_dict"), self._saved_parts)
        replace_functions(state_dict_saver, **saves, async_save=self._saved_later)
        replace_functions(state_dict_loader, **dict.fromkeys(("load", "load_state_dict"), self._loaded_parts))
        if importlib.util.find_spec("safetensors") is not None:
            self._install_safetensors()

    def _install_safetensors(self) -> None:
        package, functions = (importlib.import_module(name) for name in ("safetensors", "safetensors.torch"))
        load, opened = functions.load_file, package.safe_open

        def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
            self._saved({"tensors": tensors, "metadata": metadata}, filename)

        def load_file(filename: Any, device: Any = "cpu") -> Any:
            content = self._read(filename, device)
            return load(filename, device) if content is NO_CONTENT else content["tensors"]

        def safe_open(filename: Any, framework: str, device: Any = "cpu", **keywords: Any) -> Any:
            content = self._read(filename, device)
            return opened(filename, framework, device, **keywords) if content is NO_CONTENT else _OpenedFile(**content)

        replace_functions(functions, save_file=save_file, load_file=load_file)
        replace_functions(package, safe_open=safe_open)

    def _saved(self, obj: Any, f: Any, *arguments: Any, **keywords: Any) -> None:
        """`torch.save`; what goes to memory instead of a file is no checkpoint."""
        if is_memory(f):
            self._save(obj, f, *arguments, **keywords)
            return
        self._to_host(obj)
        with self._trace.unrecorded():
            self._files.write(f, obj)

    def _loaded(self, f: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """`torch.load`, of a file that stands for a checkpoint, or of a real one."""
        content = NO_CONTENT if is_memory(f) else self._read(f, map_location)
        return self._load(f, map_location, *arguments, **keywords) if content is NO_CONTENT else content

    def _read(self, source: Any, map_location: Any) -> Any:
        content = self._files.read(source, placing(map_location))
        if content is not NO_CONTENT:
            self._trace.note(_LOADS)
        return content

    def _saved_parts(self, state_dict: Any, *arguments: Any, **keywords: Any) -> Metadata:
        """`torch.distributed.checkpoint.save`, by which each rank writes its part; ranks wait for one another."""
        self._to_host(state_dict)
        place = _place(arguments, keywords, "storage_writer")
        if place is not None:
            self._files.make_folder(place)
            for name in (".metadata", f"__{self._rank}_0.distcp"):
                self._files.write(Path(place) / name, None)
        if not keywords.get("no_dist") and torch.distributed.is_initialized():
            torch.distributed.barrier()
        return Metadata(state_dict_metadata={})

    def _saved_later(self, state_dict: Any, *arguments: Any, **keywords: Any) -> Future[Metadata]:
        """The same, of which only the copies keep the step waiting."""
        done: Future[Metadata] = Future()
        done.set_result(self._saved_parts(state_dict, *arguments, **keywords | {"no_dist": True}))
        return done

    def _loaded_parts(self, state_dict: Any, *arguments: Any, **keywords: Any) -> None:
        """`torch.distributed.checkpoint.load`. Raises FileNotFoundError where there is no checkpoint."""
        place = _place(arguments, keywords, "storage_reader")
        if place is not None and not Path(place).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        self._trace.note(_LOADS)
        for owner, state in _states(state_dict):
            for tensor in _device_tensors(state):
                tensor.copy_(torch.empty_like(tensor, device="cpu"))
            if owner is not None:
                owner.load_state_dict(state)

    def _to_host(self, content: Any) -> None:
        self._trace.note(_SAVES)
        for tensor in _device_tensors(content):
            tensor.cpu()


class _OpenedFile:
    """A file of safetensors that is read tensor by tensor."""

    def __init__(self, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None) -> None:
        self._tensors, self._metadata = tensors, metadata

    def __enter__(self) -> _OpenedFile:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def keys(self) -> list[str]:
        """Names of tensors."""
        return list(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        """What was saved with them."""
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor."""
        return self._tensors[name]

    get_slice = get_tensor


def _place(arguments: tuple[Any, ...], keywords: dict[str, Any], by: str) -> Any:
    """The folder of a checkpoint. by: the argument that reads or writes it, if none is given by itself."""
    given = keywords.get("checkpoint_id")
    by_object = keywords.get(by, arguments[0] if arguments else None)
    return given or getattr(by_object, "path", None)


def _states(content: Any) -> Iterator[tuple[Any, Any]]:
    """Objects with a state and their states, and all other parts of nested dictionaries and lists without an owner."""
    for leaf in tree_leaves(content):
        if isinstance(leaf, Stateful) and not isinstance(leaf, torch.Tensor):
            yield leaf, leaf.state_dict()
        else:
            yield None, leaf


@torch.no_grad()
def _device_tensors(content: Any) -> list[torch.Tensor]:
    """The parts on this device of all tensors in nested dictionaries and lists, and in objects with a state."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(content):
        state = getattr(leaf, "state_dict", None)
        if isinstance(leaf, torch.Tensor):
            local = local_part(leaf).detach()
            found += [local] if local.is_cuda else []
        elif callable(state):
            found += _device_tensors(state())
    return found
