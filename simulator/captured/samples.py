"""Samples of a step of a captured script: declared, or read from the inputs of its modules."""

from __future__ import annotations

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
    in words. conflict: what disagrees with it, empty if nothing does."""

    samples: int
    tokens: int | None
    rule: str
    conflict: str = ""


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

    Raises InputError where nothing shows them, and for a declared number that replicas do not divide.
    """
    first = min(capture.classes, key=lambda one: one.played)
    votes = list(_votes(first.inputs))
    chosen = _chosen(votes)
    tokens = _tokens(first, chosen[0].shape) if chosen else None
    if capture.samples is not None:
        if capture.samples % replicas:
            message = f"{capture.samples:,} samples a step are no multiple of the {replicas:,} workers"
            raise InputError(f"{name}: {message}; give another number")
        return SampleCount(capture.samples // replicas, tokens, "as given")
    if not chosen:
        raise InputError(
            f"{name}: no module was called with a batch in the captured step; give its size with 'scaleproof capture --samples'"
        )
    found = chosen[0]
    times = f" of {found.calls} calls" if found.calls > 1 else ""
    rule = f"the first dimension of {found.module}'s input {_text(found.shape)}{times}"
    return SampleCount(found.samples, tokens, rule, _conflict(votes, found))


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
