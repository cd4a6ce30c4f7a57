"""Times of preparing batches, which a worker does before each timed training step, and of reading and decoding files.

All ranks call the probe, and each gets all its points.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.model import ModelSpec
from scaleproof.simulator.model.layers import kind_of
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import Step, by_size, repeat, timed
from scaleproof.validator.probe.peers import GroupPeers, collected, named
from scaleproof.validator.probe.points import FILES_DECODED, FILES_READ, SKIPPED, Point
from scaleproof.validator.probe.rounds import groups_in_turn, in_rounds
from scaleproof.validator.train.data import worker_batches
from scaleproof.validator.train.models.models import DTYPES

# Data depends on the model and the batch only; the schema requires some cluster.
_CLUSTER: Final = {
    "node": {"devices": 1, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}},
    "device": {"name": "cpu", "peak": {"fp32": "1 GFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "1 GB/s"},
}
# Of files: read together, by as many threads as loaders often have workers, and at most looked at.
_BATCH: Final = 32
_READERS: Final = 8
_MOST_FILES: Final = 4096
# Bytes read of a file at most, as of shards with many samples.
_MOST_BYTES: Final = 2**24
# Side of the square to which an image is scaled after decoding.
_SIDE: Final = 224


def files(folder: Path, budget_s: float = 1.0) -> list[dict[str, Any]]:
    """Points of reading a batch of a folder's files past the page cache, by several threads, and of decoding it and scaling it
    to 224 pixels on one core, if Pillow reads the files."""
    paths = sorted(itertools.islice(files_of(folder), _MOST_FILES))
    batches = [paths[first : first + _BATCH] for first in range(0, len(paths), _BATCH)]
    whole = [batch for batch in batches if len(batch) == len(batches[0])]
    sizes = [path.stat().st_size for batch in whole for path in batch]
    size_bytes, file_bytes = sum(min(size, _MOST_BYTES) for size in sizes) / len(whole), sum(sizes) / len(sizes)
    turns, contents = itertools.cycle(whole), [_read(path) for path in whole[0]]
    problems = list(map(_undecoded, contents))
    images = [content for content, problem in zip(contents, problems, strict=True) if not problem]

    def probe(budget_s: float) -> Iterator[Point]:
        own = "rank 0", (0,)
        with ThreadPoolExecutor(_READERS) as pool:
            taken = repeat(timed(lambda: list(pool.map(_read, next(turns)))), budget_s / 2)
        yield taken.point("loading", FILES_READ, *own, size_bytes, "bytes", readers=_READERS, file_bytes=file_bytes)
        if images:
            taken = repeat(timed(lambda: list(map(_decode, images))), budget_s / 2)
            yield taken.point("loading", FILES_DECODED, *own, len(images), "samples")

    points = in_rounds(probe, budget_s)
    if not images:
        points.append(Point("loading", FILES_DECODED, "rank 0", (0,), "", 0.0, "samples", (), f"{SKIPPED}: {problems[0]}"))
    return collected(points)


def files_of(folder: Path) -> Iterator[Path]:
    """The files in a folder and the folders in it, without hidden and empty ones."""
    return (path for path in folder.rglob("*") if path.is_file() and path.name[0] != "." and path.stat().st_size)


def _read(path: Path) -> bytes:
    """The content of a file, of a large one the beginning."""
    with path.open("rb", buffering=0) as file:
        # where the system can: forget what earlier reads have left in memory
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read(_MOST_BYTES)


def _undecoded(image: bytes) -> str:
    """Why a file is not decoded; "" if it is an image."""
    try:
        _decode(image)
    except (ImportError, OSError) as error:
        return str(error)
    return ""


def _decode(image: bytes) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(image)) as opened:
        opened.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)


def loading(
    model: ModelSpec, samples: Sequence[int] = (8, 64), data: Path | None = None, budget_s: float = 1.0
) -> list[dict[str, Any]]:
    """Points of preparing a batch of `samples` samples on all ranks concurrently, of the slowest rank.

    data: a file whose bytes are tokens, for a gpt; random data if None.
    """
    what = f"{kind_of(model)}, {'random' if data is None else f'from {data.name}'}"

    def probe(peers: GroupPeers, budget_s: float) -> Iterable[Point]:
        for count, taken in by_size(partial(_step, model, data), samples, budget_s, peers):
            yield taken.point("loading", what, named(peers.ranks), peers.ranks, count, "samples")

    return groups_in_turn([range(here().ranks)], probe, budget_s)


def _step(model: ModelSpec, data: Path | None, samples: int) -> Step:
    """Step that prepares the next batch."""
    scenario = Scenario.model_validate(
        {
            "name": "loading",
            "model": model,
            "cluster": _CLUSTER,
            "strategy": {"kind": "data_parallel", "workers": 1},
            "batch": {"total": samples},
            "training": {"precision": "fp32"} | ({} if data is None else {"data": str(data)}),
        }
    )
    numbers = itertools.count()
    return timed(lambda: worker_batches(scenario, 0, [next(numbers)], here().device, DTYPES["fp32"]))
