"""Files of a Run: `run.json`, and `spans.npz` with its spans."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import AfterValidator, BeforeValidator, TypeAdapter

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.spans import Spans
from scaleproof.simulator.run.run import Run

SPANS_FILE: Final = "spans.npz"
# Key of the digest of the spans in `run.json`; its value is "" without spans.
_SPANS_DIGEST: Final = "spans_digest"
# Maximum size of all columns, uncompressed: fifty million spans.
_MOST_SPANS_BYTES: Final = 2 * 2**30


def _with_scaling(plain: Any) -> Any:
    """A summary, whose keys `efficiency`, `speed_up` and `baseline` are by kind of scaling, with the key `scaling`."""
    if not isinstance(plain, Mapping):
        return plain
    efficiencies, speed_ups, baselines = (plain.get(name) or {} for name in ("efficiency", "speed_up", "baseline"))
    if not all(isinstance(by_kind, Mapping) for by_kind in (efficiencies, speed_ups, baselines)):
        raise ValueError("efficiency, speed_up and baseline are mappings")
    scaling = {
        kind: {"efficiency": efficiency, "speed_up": speed_ups.get(kind), "baseline": baselines.get(kind) or ""}
        for kind, efficiency in efficiencies.items()
        if efficiency is not None
    }
    return {**plain, "scaling": scaling}


def _with_printable_names(run: Run) -> Run:
    if any(not name.isprintable() for name in (run.scenario, run.strategy, *run.rank_names)):
        raise ValueError("its names contain control characters")
    return run


_SUMMARY: Final[TypeAdapter[Run]] = TypeAdapter(
    Annotated[Run, BeforeValidator(_with_scaling), AfterValidator(_with_printable_names)]
)


def from_summary(plain: Any) -> Run:
    """The run without spans of which `plain` is the summary, as read from JSON. Raises ValidationError."""
    return _SUMMARY.validate_python(plain)


def save(run: Run, folder: Path) -> None:
    """Writes `run.json`, and `spans.npz` if the run has spans, each to a temporary file that is then renamed.

    The digest of the spans in `run.json` detects an interruption between the two files.
    """
    digest = ""
    if run.spans is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **run.spans.columns())
        digest = _digest(buffer.getvalue())
        write_atomically(folder / SPANS_FILE, buffer.getvalue())
    content = run.to_dict() | {_SPANS_DIGEST: digest}
    write_atomically(folder / "run.json", (json.dumps(content, indent=2) + "\n").encode())


def load_run(folder: Path) -> Run:
    """Loads the run that `save` wrote into `folder`. Raises OSError or ValueError if that is not possible."""
    plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return replace(from_summary(plain), spans=load_spans(folder, plain))


def load_spans(folder: Path, plain: Mapping[str, Any]) -> Spans | None:
    """Loads the spans that belong to the content `plain` of a `run.json`; None without spans.

    Raises ValueError for spans of another run or too many, OSError and others for damaged files.
    """
    path = folder / SPANS_FILE
    # older files have no digest
    digest = plain.get(_SPANS_DIGEST)
    if digest == "" or not path.is_file():
        return None
    content = path.read_bytes()
    if digest is not None and digest != _digest(content):
        raise ValueError("its spans are of another run")
    # from memory, since numpy leaves a file open that is not an archive
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MOST_SPANS_BYTES:
            raise ValueError(f"its spans take more than {_MOST_SPANS_BYTES >> 30} GiB")
    with np.load(io.BytesIO(content), allow_pickle=False) as columns:
        return Spans.of(columns)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
