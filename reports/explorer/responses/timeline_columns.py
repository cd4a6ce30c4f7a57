"""The timeline of a step as columns that the page draws: a row for each kind of rank, with boxes."""

from __future__ import annotations

import base64
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.reports.charts import style
from scaleproof.reports.timeline.boxes import TimelineBoxes, merged
from scaleproof.reports.timeline.step import WEIGHT, Step, typical_step
from scaleproof.simulator.common.communication import label_of
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.run.run import Run

# a kind in addition to those of a step: a wait for other ranks
_WAITING: Final = WEIGHT + 1
# what a kind is called, its colour, and what it is; a colour that depends on the theme is a variable of the page's style sheet
_COLOURS: Final = style.PHASE_COLOURS
KINDS: Final = {
    int(Phase.FORWARD): ("forward pass", _COLOURS["forward"], "outputs, layer by layer"),
    int(Phase.BACKWARD): ("backward pass", _COLOURS["backward"], "gradients, last layer first"),
    WEIGHT: ("gradients of weights", _COLOURS["gradients of weights"], "the part of a backward pass that no layer waits for"),
    int(Phase.OPTIMIZER): ("optimizer", "var(--ink)", "update of the parameters"),
    int(Phase.SYNCHRONISE): ("collectives", _COLOURS["synchronise"], "all-reduce, all-gather, reduce-scatter or all-to-all"),
    int(Phase.SEND): ("send", _COLOURS["send"], "a message to another rank"),
    int(Phase.RECEIVE): ("receive", _COLOURS["receive"], "a message from another rank"),
    int(Phase.WAIT): ("waiting for server or workers", _COLOURS["wait"], "idle until a server replies"),
    int(Phase.INPUT): ("waiting for input", _COLOURS["input"], "samples are not read yet"),
    _WAITING: ("waiting for other ranks", "var(--faint)", "idle until other ranks arrive"),
}
# tracks of a row: the rank's own work, overlapped communication, and that by direction
_MAIN, _OVERLAPPED, _SENT, _RECEIVED = range(4)
_TRACKS: Final = 4
_TRACK_OF: Final = {int(Phase.SEND): _SENT, int(Phase.RECEIVE): _RECEIVED}
# times are integers in units of this part of the step
_PARTS: Final = 1_000_000
# shorter boxes, as shares of the step, are rounding errors of times
_ROUNDING: Final = 1e-9
# beyond this number of boxes, crowded ones are merged and lose stage and microbatch
_MOST_BOXES: Final = 12_000
_CELLS: Final = 1500


def timeline_columns(run: Run) -> dict[str, Any] | None:
    """The typical step of a run as `packed` columns, with times in millionths of its length; None without spans."""
    step = typical_step(run)
    if step is None or not len(step.spans) or step.length_ms <= 0:
        return None
    boxes, stage, microbatch, communication = _boxes(step)
    cells, each = _CELLS, boxes
    while len(boxes.track) > _MOST_BOXES and cells > 1:
        boxes = merged(each, step.length_ms / cells)
        stage = microbatch = communication = np.full(len(boxes.track), -1)
        cells //= 2
    scale = _PARTS / step.length_ms
    rows, track = np.divmod(boxes.track, _TRACKS)
    present = np.unique(boxes.kind)
    return {
        "length_ms": step.length_ms,
        "parts": _PARTS,
        "rows": [_row_name(run, rank) for rank in step.ranks],
        "of": step.of,
        "boxes": len(rows),
        "steps": 1 if step.number else round(step.length_ms / (run.step_time_s * 1e3)) if run.step_time_s else 1,
        "merged": bool(boxes.number.max(initial=1) > 1),
        "kinds": {str(kind): {"name": name, "colour": colour, "help": words} for kind, (name, colour, words) in KINDS.items()
                  if kind in present},
        "communications": {str(number): label_of(number) for number in np.unique(communication).tolist() if number >= 0},
        "row": packed(rows),
        "track": packed(track),
        "kind": packed(boxes.kind),
        "chunk": packed(boxes.chunk),
        "stage": packed(stage),
        "microbatch": packed(microbatch),
        "communication": packed(communication),
        "start": packed(np.round(boxes.start_ms * scale)),
        "end": packed(np.round(boxes.end_ms * scale)),
        "number": packed(boxes.number),
    }  # fmt: skip


def packed(column: NDArray[Any]) -> str:
    """Integers as base64 of 32-bit little-endian values, ten times as fast to write as digits."""
    return base64.b64encode(column.astype("<i4").tobytes()).decode()


def _row_name(run: Run, rank: int) -> str:
    return style.label(run.rank_names[rank], 26) if rank < len(run.rank_names) else f"rank {rank}"


def _boxes(step: Step) -> tuple[TimelineBoxes, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A box for each span and for each wait before one, with their stages, microbatches and communication (−1: unknown)."""
    spans = step.spans
    main = spans.stream == Stream.MAIN
    overlapped = np.array([_TRACK_OF.get(kind, _OVERLAPPED) for kind in range(_WAITING)])[step.kind]
    track = _TRACKS * np.searchsorted(step.ranks, spans.rank) + np.where(main, _MAIN, overlapped)
    # waits for servers and for input have colours of their own, from arrival on
    waits = main & (step.start_ms > step.arrival_ms) & ~np.isin(spans.phase, (Phase.WAIT, Phase.INPUT))
    begin_ms = np.where(main & ~waits, step.arrival_ms, step.start_ms)
    number = np.ones(len(track), dtype=np.int64)
    doing = TimelineBoxes(track, step.kind, step.chunk, begin_ms, step.end_ms, number)
    waiting = TimelineBoxes(track, np.full(len(track), _WAITING), step.chunk, step.arrival_ms, step.start_ms, number).where(
        waits
    )
    boxes = waiting.and_(doing)
    columns = (spans.stage, spans.microbatch, spans.communication)
    stage, microbatch, communication = (
        np.concatenate([np.full(int(waits.sum()), -1), column]).astype(np.int64) for column in columns
    )
    shown = boxes.end_ms - boxes.start_ms > _ROUNDING * step.length_ms
    return boxes.where(shown), stage[shown], microbatch[shown], communication[shown]
