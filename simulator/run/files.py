"""Files of a Run: `run.json`, and `spans.npz` with its spans."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.spans import Spans
from scaleproof.simulator.run.records import (
    CaptureFacts,
    CommunicationPart,
    LoadingRates,
    Scaling,
    ServerStatistics,
    StageMemory,
    StepDistribution,
    TargetEstimate,
    Verification,
)
from scaleproof.simulator.run.run import DERIVED, Run

SPANS_FILE: Final = "spans.npz"
# Key of the digest of the spans in `run.json`; its value is "" without spans.
_SPANS_DIGEST: Final = "spans_digest"
# Maximum size of all columns, uncompressed: fifty million spans.
_MOST_SPANS_BYTES: Final = 2 * 2**30
# Types of the fields that are records.
_RECORDS: Final[dict[str, TypeAdapter[Any]]] = {
    "servers": TypeAdapter(ServerStatistics),
    "loading": TypeAdapter(LoadingRates),
    "step_distribution": TypeAdapter(StepDistribution),
    "to_target": TypeAdapter(TargetEstimate),
    "verified": TypeAdapter(Verification),
    "capture": TypeAdapter(CaptureFacts),
    "communication": TypeAdapter(tuple[CommunicationPart, ...]),
    "memory_by_stage": TypeAdapter(tuple[StageMemory, ...]),
}


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
    content = run.summary() | {_SPANS_DIGEST: digest}
    write_atomically(folder / "run.json", (json.dumps(content, indent=2) + "\n").encode())


def load_run(folder: Path) -> Run:
    """Loads the run that `save` wrote into `folder`. Raises OSError, ValueError or KeyError if that is not possible."""
    plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    plain["scaling"] = Scaling.by_kind(plain)
    for name in DERIVED:
        plain.pop(name, None)
    for name in ("step_times_s", "losses", "update_losses", "rank_names"):
        plain[name] = tuple(plain.get(name, ()))
    for name, record in _RECORDS.items():
        if plain.get(name) is not None:
            plain[name] = record.validate_python(plain[name])
    for name in ("step_time_interval_s", "prediction_interval_s", "memory_interval_bytes"):
        if plain.get(name):
            plain[name] = tuple(plain[name])
    if any(not str(name).isprintable() for name in (plain["scenario"], plain["strategy"], *plain["rank_names"])):
        raise ValueError("its names contain control characters")
    spans = load_spans(folder, plain)
    plain.pop(_SPANS_DIGEST, None)
    return Run(**plain, spans=spans)


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
