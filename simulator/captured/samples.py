"""Samples of a step of a captured script: declared, or read from the inputs of its modules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
    """A number of samples that an input shows: its module, its shape, and the number of calls with it. sequence_first: what
    shows that samples are the second dimension, after the sequence; empty if nothing does."""

    module: str
    shape: tuple[int, ...]
    calls: int
    sequence_first: str = ""

    @property
    def samples(self) -> int:
        """Samples of a step: of all calls."""
        return max(1, self.shape[1 if self.sequence_first else 0] * self.calls)

    @property
    def others(self) -> tuple[int, ...]:
        """The dimensions after the samples, of which the first may be the sequence."""
        return (self.shape[0], *self.shape[2:]) if self.sequence_first else self.shape[1:]

    @property
    def dimension(self) -> str:
        """The dimension of the samples, in words."""
        return "the second dimension" if self.sequence_first else "the first dimension"


class _BatchOrder:
    """The order of samples and sequence in tensors of a step. attention: see `samples_of`."""

    def __init__(self, first: RecordedRanks, attention: Collection[tuple[int, int]]) -> None:
        self._attention = attention
        copies = (row for row in first.rows(EventKind.COPY).tolist() if first.text("name", row) == "host to device")
        self._loaded = {tuple(shape[:2]) for row in copies for shape, _, _ in first.signature(row).inputs if len(shape) == 2}

    def is_shown(self, shape: tuple[int, ...]) -> bool:
        """Whether attention shows the order of a tensor's first two dimensions."""
        return not {shape[:2], shape[1::-1]}.isdisjoint(self._attention)

    def sequence_first(self, shape: tuple[int, ...]) -> str:
        """What shows that a tensor has the sequence before the samples; empty if nothing does."""
        own, swapped = shape[:2], shape[1::-1]
        if len(shape) < 2 or own in self._attention:
            return ""
        if swapped in self._attention:
            return f", as attention has {swapped[0]:,} samples of {swapped[1]:,} positions"
        is_loaded = swapped in self._loaded and own not in self._loaded
        return f", as the script loads {_text(swapped)} to the device" if is_loaded else ""


def samples_of(capture: Capture, replicas: int, name: str, attention: Collection[tuple[int, int]] = ()) -> SampleCount:
    """Samples of a step of each replica. name: of the capture, for errors. attention: numbers of samples and of queries of each
    attention of the step.

    Raises InputError for a declared number that replicas do not divide.
    """
    found = _found(min(capture.classes, key=lambda one: one.played), attention)
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


def _found(first: RecordedRanks, attention: Collection[tuple[int, int]]) -> SampleCount:
    """What the recorded step shows. attention: see `samples_of`."""
    order = _BatchOrder(first, attention)
    votes = [vote._replace(sequence_first=order.sequence_first(vote.shape)) for vote in _votes(first.inputs)]
    chosen = _chosen(votes)
    if chosen:
        found = chosen[0]
        times = f" of {found.calls} calls" if found.calls > 1 else ""
        rule = f"{found.dimension} of {found.module}'s input {_text(found.shape)}{times}{found.sequence_first}"
        tokens = found.others[0] if found.others and _reads_tokens(first) else None
        conflict = _conflict(votes, found)
        if not conflict and tokens and tokens < found.shape[0] and not order.is_shown(found.shape):
            conflict = f"{_text(found.shape)} was taken as samples × sequence, though it has more samples than positions"
        return SampleCount(found.samples, tokens, rule, conflict)
    unknown = "no module was called with a batch"
    shape, calls = _integer_batch(first)
    if not shape:
        return SampleCount(1, None, f"{unknown}; give --samples or --tokens", is_known=False)
    of = f"integers {_text(shape)}" + (f" of {calls} calls" if calls > 1 else "")
    if len(shape) == 1:
        return SampleCount(1, shape[0] * calls, f"{unknown}; tokens are its {of}; give --samples", is_known=False)
    vote = _Vote("", shape, calls, order.sequence_first(shape))
    return SampleCount(vote.samples, math.prod(vote.others), f"{unknown}; {vote.dimension} of its {of}{vote.sequence_first}")


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


def _reads_tokens(first: RecordedRanks) -> bool:
    """Whether the model looks up tokens."""
    names = {base_name(first.text("name", row)) for row in first.rows(EventKind.OPERATOR).tolist()}
    return any(name.startswith(_EMBEDDING) for name in names)
