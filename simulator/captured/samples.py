"""Samples of a step of a captured script: declared, or read from the inputs of its modules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from scaleproof.simulator.captured.record import Capture, EventKind, ModelInput, RecordedRanks
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.torch_operators import base_name

# Modules around a replica of the model. FSDP2 puts its name before the class of the module that it shards.
_REPLICAS: Final = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDP")
# A module that pools groups of indices into a sample each, and the place of the beginnings of groups among its inputs.
_BAG: Final = "EmbeddingBag"
_OFFSETS: Final = 1
_LOSS: Final = "Loss"
# Operators of embeddings, also of their gradients: others look up rows as well, and are no sign of tokens.
_EMBEDDING: Final = "embedding"


class SampleCount(NamedTuple):
    """Samples of a step of a replica, and tokens of a sample, None if the model looks up none. rule: how the number was found,
    in words. conflict: what disagrees with it, empty if nothing does. is_known: whether it is a number of samples; otherwise it
    is 1, and all that a replica takes in a step counts as one."""

    samples: int
    tokens: int | None
    rule: str
    conflict: str = ""
    is_known: bool = True


class _Vote(NamedTuple):
    """A number of samples that an input shows: its module, its shape, and the number of calls with it."""

    module: str
    shape: tuple[int, ...]
    calls: int

    @property
    def samples(self) -> int:
        """Samples of a step: the first dimension of all calls."""
        return max(1, self.shape[0] * self.calls)


def samples_of(capture: Capture, replicas: int, name: str) -> SampleCount:
    """Samples of a step of each replica. name: of the capture, for errors.

    Raises InputError for a declared number that replicas do not divide.
    """
    found = _found(min(capture.classes, key=lambda one: one.played))
    for number, unit in ((capture.samples, "samples"), (capture.tokens, "tokens")):
        if number is not None and number % replicas:
            message = f"{number:,} {unit} a step are no multiple of the {replicas:,} workers"
            raise InputError(f"{name}: {message}; give another number")
    if capture.samples is not None:
        found = SampleCount(capture.samples // replicas, found.tokens, "as given")
    if capture.tokens is not None:
        each = capture.tokens // replicas
        if each % found.samples:
            message = f"{capture.tokens:,} tokens a step are no multiple of the {found.samples * replicas:,} samples"
            raise InputError(f"{name}: {message}; give another number, or --samples as well")
        found = found._replace(tokens=each // found.samples)
    return found


def _found(first: RecordedRanks) -> SampleCount:
    """What the recorded step shows."""
    votes = list(_votes(first.inputs))
    chosen = _chosen(votes)
    if chosen:
        found = chosen[0]
        times = f" of {found.calls} calls" if found.calls > 1 else ""
        rule = f"the first dimension of {found.module}'s input {_text(found.shape)}{times}"
        return SampleCount(found.samples, _tokens(first, found.shape), rule, _conflict(votes, found))
    unknown = "no module was called with a batch"
    shape, calls = _integer_batch(first)
    if not shape:
        return SampleCount(1, None, f"{unknown}; give --samples or --tokens", is_known=False)
    of = f"integers {_text(shape)}" + (f" of {calls} calls" if calls > 1 else "")
    if len(shape) == 1:
        return SampleCount(1, shape[0] * calls, f"{unknown}; tokens are its {of}; give --samples", is_known=False)
    return SampleCount(max(1, shape[0] * calls), math.prod(shape[1:]), f"{unknown}; the first dimension of its {of}")


def _integer_batch(first: RecordedRanks) -> tuple[tuple[int, ...], int]:
    """The shape of the first integers with which rows of an embedding are looked up, and the number of such look-ups of that
    table; else that of the first integers of at least two dimensions that are copied to the device. Empty if there are none."""
    found: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for row in first.rows(EventKind.OPERATOR).tolist():
        if base_name(first.text("name", row)) == _EMBEDDING and first.columns["recomputed"][row] != 1:
            found[tuple(tuple(shape) for shape, _, _ in first.signature(row).inputs[:2])] += 1
    for shapes, calls in found.items():
        if len(shapes) > 1 and shapes[1]:
            return shapes[1], calls
    for row in first.rows(EventKind.COPY).tolist():
        for shape, dtype, _ in first.signature(row).inputs:
            if first.text("name", row) == "host to device" and dtype.startswith("int") and len(shape) > 1:
                return tuple(shape), 1
    return (), 0


def _votes(inputs: Sequence[ModelInput]) -> Iterator[_Vote]:
    """A vote of each tensor of all inputs that contain samples; losses may be of tokens."""
    for one in inputs:
        shapes = [shape for shape in one.shapes if shape]
        if one.module == _BAG:
            # tables of the same shape are called once each
            yield from (_Vote(one.module, shape, 1) for shape in shapes[_OFFSETS:] or shapes)
        elif not one.module.endswith(_LOSS) or all(other.module.endswith(_LOSS) or not other.shapes for other in inputs):
            yield from (_Vote(one.module, shape, one.calls) for shape in shapes)


def _chosen(votes: Sequence[_Vote]) -> list[_Vote]:
    """The votes for the most frequent number among inputs of replicas of the model, if there are any, else among all."""
    of_replicas = [vote for vote in votes if vote.module.startswith(_REPLICAS)] or votes
    counts = Counter(vote.samples for vote in of_replicas)
    most = max(counts.values(), default=0)
    first = next((vote.samples for vote in of_replicas if counts[vote.samples] == most), None)
    return [vote for vote in of_replicas if vote.samples == first]


def _conflict(votes: Sequence[_Vote], found: _Vote) -> str:
    """Inputs that show another number, as a sentence."""
    others = {vote: None for vote in votes if vote.samples not in (found.samples, 1)}
    if not others:
        return ""
    listed = ", ".join(f"{vote.module}'s {_text(vote.shape)}" for vote in others)
    return f"inputs disagree on the samples of a step: {found.module}'s {_text(found.shape)} was taken, not {listed}"


def _text(shape: tuple[int, ...]) -> str:
    """'4 × 2048'."""
    return " × ".join(map(str, shape))


def _tokens(first: RecordedRanks, shape: tuple[int, ...]) -> int | None:
    """Tokens of a sample with a shape, if the model looks up tokens."""
    names = {base_name(first.text("name", row)) for row in first.rows(EventKind.OPERATOR).tolist()}
    reads_tokens = any(name.startswith(_EMBEDDING) for name in names)
    return shape[1] if len(shape) > 1 and reads_tokens else None
