"""Samples of different lengths: how long microbatches are, what attention computes, and how unequal ranks are.

Lengths are drawn from a fixed seed for the microbatches of some steps of all workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.layers import ContextBy, Layer
from scaleproof.simulator.model.operators import Attention

_SEED: Final = 20_261_130
# Drawn samples, and steps that are drawn at least; means are accurate to about 1 %.
_DRAWS: Final = 2**17
_LEAST_STEPS: Final = 8
# Workers that are drawn; of more, the slowest is hardly slower.
_MOST_WORKERS: Final = 512
# Microbatches among whose samples lengths are sorted (transformers' get_length_grouped_indices, mega_batch_mult).
_SORTED: Final = 50
_MOST_FILE_BYTES: Final = 64 * 2**20
# Activations that grow with the keys of attention without a flash kernel.
_SCORES: Final = frozenset({"attention scores", "attention mask", "dropped attention scores"})


class Lengths(Spec):
    """Lengths of samples in tokens, at most `model.sequence`, to which longer ones are cut, and how microbatches are made of
    them."""

    distribution: Literal["lognormal", "uniform", "file"]
    mean: PositiveFloat | None = Field(None, description="tokens of a sample, before longer ones are cut")
    deviation: Annotated[float, Field(gt=0, le=3)] = Field(
        0.7, description="lognormal: standard deviation of the length's logarithm"
    )
    file: str | None = Field(None, description="a text file with the length of a sample in each line")
    batches: Literal["padded", "grouped", "packed"] = Field(
        "padded",
        description="padded: to the longest sample of a microbatch; grouped: so, of samples of similar lengths; packed: "
        "several fill model.sequence tokens, which are one sample of the batch",
    )
    across: bool = Field(False, description="packed: whether tokens attend to the samples before their own")

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if (self.distribution == "file") != (self.file is not None):
            raise ValueError("file: goes with distribution file; give both, or neither")
        if (self.distribution == "file") == (self.mean is not None):
            raise ValueError("mean: goes with the distributions lognormal and uniform; give it there alone")
        if self.across and self.batches != "packed":
            raise ValueError("across: goes with batches packed; give packed, or leave it out")
        return self


class LengthStatistics(NamedTuple):
    """Tokens of samples: in the mean, and with padding, as microbatches compute them.

    keys: mean number of tokens of a token's sample, with padding, to which attention computes scores. tokens_imbalance,
    scores_imbalance: of the rank with the most, over the mean, of tokens and of attention scores; steps wait for it.
    """

    mean: float
    padded: float
    keys: float
    tokens_imbalance: float
    scores_imbalance: float

    def imbalance(self, layers: Sequence[Layer]) -> float:
        """Time of the rank with the most work relative to the mean, by the FLOPs of attention and of all else."""
        flops = [(one.forward_flops, isinstance(one, Attention)) for layer in layers for one in layer.operators]
        share = sum(flops for flops, is_attention in flops if is_attention) / max(1.0, sum(flops for flops, _ in flops))
        return (1 - share) * self.tokens_imbalance + share * self.scores_imbalance


@functools.lru_cache(maxsize=256)
def statistics(
    lengths: Lengths, longest: int, samples: int, microbatches: int, workers: int, waits_each: bool,
    context: int = 1, context_by: ContextBy = "ring",
) -> LengthStatistics:  # fmt: skip
    """Statistics of microbatches of `samples` samples of at most `longest` tokens.

    waits_each: whether workers wait for each other in each microbatch, not only at the end of a step of `microbatches`.
    context, context_by: context-parallel ranks of a worker, and how they divide sequences, of which each takes one part from
    the front and one from the back. That is equal work in causal attention to whole sequences, and to packed samples if each of
    them is divided so, padded to a multiple of the parts, as kernels of ring attention need. Ranks that gather keys divide the
    packed sequence instead, and wait for the one whose parts have the longest samples. With Ulysses ranks divide heads.
    Raises InputError for a file that cannot be read.
    """
    is_divided = context > 1 and not lengths.across
    each = 2 * context if is_divided and context_by == "ring" else 1
    drawn = _drawn(lengths, longest, samples, microbatches, min(workers, _MOST_WORKERS), each)
    scores = np.bincount(drawn.sample, drawn.tokens**2, math.prod(drawn.shape)).reshape(drawn.shape).sum(axis=3)
    if lengths.batches == "packed":
        if lengths.across:
            scores = np.full(drawn.shape[:3], samples * float(longest) ** 2)
        waited = scores
        if is_divided and context_by == "all_gather":
            of_ranks = _scores_of_parts(drawn.begins, longest, math.prod(drawn.shape), 2 * context)
            of_ranks = of_ranks.reshape(-1, samples, 2 * context).sum(axis=1)
            of_ranks += of_ranks[:, ::-1]
            waited = scores * (of_ranks.max(axis=1) / of_ranks.mean(axis=1)).reshape(scores.shape)
        keys = scores.mean() / samples / longest
        return LengthStatistics(longest * drawn.real, longest, keys, 1.0, _imbalance(waited, scores, waits_each))
    padded = drawn.tokens.reshape(drawn.shape).max(axis=3)
    mean = padded.mean()
    imbalances = (_imbalance(amount, amount, waits_each) for amount in (padded, padded**2))
    return LengthStatistics(drawn.tokens.mean(), mean, (padded**2).mean() / mean, *imbalances)


def step_lengths(
    lengths: Lengths, longest: int, samples: int, microbatches: int, workers: int, step: int
) -> list[tuple[int, ...]]:
    """Tokens of what is in each sample of a step, one worker's microbatches after the other: of a packed one, those of all that
    attend to themselves alone. Predictions are means over these steps. Parameters as of `statistics`."""
    drawn = _drawn(lengths, longest, samples, microbatches, workers)
    numbers = np.arange(math.prod(drawn.shape)).reshape(drawn.shape)[step % drawn.shape[0]].swapaxes(0, 1).ravel()
    found: dict[int, list[int]] = {number: [] for number in numbers.tolist()}
    chosen = np.isin(drawn.sample, numbers)
    for number, tokens in zip(drawn.sample[chosen].tolist(), drawn.tokens[chosen].tolist(), strict=True):
        found[number].append(int(tokens))
    return [(longest,) if lengths.across else tuple(own) for own in found.values()]


class _Drawn(NamedTuple):
    """Drawn samples of some steps.

    tokens: of each, or of its parts. sample: the number of the sample of the batch that each is in. shape: steps, microbatches,
    workers and samples of a microbatch, in the order of numbers. begins: of packed samples, in tokens of the whole batch;
    real: share of tokens that are no padding of packed samples.
    """

    tokens: NDArray[np.float64]
    sample: NDArray[np.int64]
    shape: tuple[int, int, int, int]
    begins: NDArray[np.float64] = np.zeros(0)
    real: float = 1.0


@functools.lru_cache(maxsize=8)
def _drawn(lengths: Lengths, longest: int, samples: int, microbatches: int, workers: int, each: int = 1) -> _Drawn:
    """each: number of tokens of which packed samples are padded to a multiple."""
    own = workers * microbatches * samples
    shape = max(_LEAST_STEPS, _DRAWS // own), microbatches, workers, samples
    count = math.prod(shape)
    if lengths.batches == "packed":
        return _packed(lengths, longest, shape, each)
    random = np.random.default_rng(_SEED)
    tokens = _random_lengths(lengths, longest, count, random)
    if lengths.batches == "grouped":
        group = min(count, _SORTED * samples * microbatches)
        tokens = np.concatenate([np.sort(part)[::-1] for part in np.split(tokens, range(group, count, group))])
        # as longer microbatches come first in each group, a few steps are among all
        tokens = random.permutation(tokens.reshape(shape)).ravel()
    return _Drawn(tokens, np.arange(count), shape)


def _packed(lengths: Lengths, longest: int, shape: tuple[int, int, int, int], each: int) -> _Drawn:
    """Samples of `longest` tokens that are filled one after another; what does not fit into one is cut, and begins the next."""
    count = math.prod(shape)
    mean = _random_lengths(lengths, longest, 10_000, np.random.default_rng(_SEED)).mean()
    real = _random_lengths(lengths, longest, math.ceil(1.1 * count * longest / mean) + 10, np.random.default_rng(_SEED))
    tokens = np.minimum(np.ceil(real / each) * each, longest)
    ends = np.cumsum(tokens)
    bounds = np.union1d(ends, longest * np.arange(count + 1, dtype=np.float64))
    bounds = bounds[bounds <= count * longest]
    sample = (bounds[:-1] // longest).astype(np.int64)
    return _Drawn(np.diff(bounds), sample, shape, ends - tokens, float(real.sum() / tokens.sum()))


def _scores_of_parts(begins: NDArray[np.float64], longest: int, rows: int, parts: int) -> NDArray[np.float64]:
    """Attention scores of the tokens of each part of each row with the tokens before them in their packed sample, shape
    (rows, parts). begins: of the packed samples, in tokens of all rows."""
    edges = np.arange(rows * parts + 1) * (longest / parts)
    cuts = np.union1d(edges, begins[begins < edges[-1]])
    first, last = cuts[:-1], cuts[1:]
    part = np.searchsorted(edges, first, side="right") - 1
    sample = np.maximum(begins[np.searchsorted(begins, first, side="right") - 1], part // parts * longest)
    scores = np.bincount(part, ((last - sample) ** 2 - (first - sample) ** 2) / 2, rows * parts)
    return scores.reshape(rows, parts).astype(np.float64)


def _imbalance(amount: NDArray[np.float64], mean: NDArray[np.float64], waits_each: bool) -> float:
    """The largest amount of a worker over the mean. amount: of the rank of each worker that is waited for; mean: of all of its
    ranks; by step, microbatch and worker."""
    own = amount if waits_each else amount.sum(axis=1)
    return float(own.max(axis=-1).mean() / (mean.mean() if waits_each else mean.sum(axis=1).mean()))


def _random_lengths(lengths: Lengths, longest: int, count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Tokens of `count` samples."""
    if lengths.file is not None:
        found = _in_file(lengths.file)
        return np.minimum(found[random.integers(len(found), size=count)], longest)
    assert lengths.mean is not None
    if lengths.distribution == "uniform":
        reach = min(lengths.mean - 1, max(0.0, longest - lengths.mean))
        drawn = random.uniform(lengths.mean - reach, lengths.mean + reach, count)
    else:
        drawn = random.lognormal(math.log(lengths.mean) - lengths.deviation**2 / 2, lengths.deviation, count)
    return np.clip(np.rint(drawn), 1, longest)


@functools.lru_cache(maxsize=8)
def _in_file(name: str) -> NDArray[np.float64]:
    """The lengths in a file, one a line. Raises InputError."""
    path, remedy = Path(name), "give a text file with a number of tokens in each line"
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise InputError(f"{name}: more than {_MOST_FILE_BYTES >> 20} MiB; {remedy}")
        found = np.array(path.read_text(encoding="utf-8").split(), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: {error}; {remedy}") from None
    if not len(found) or not (np.isfinite(found).all() and found.min() >= 1):
        raise InputError(f"{name}: lengths must be 1 or more; {remedy}")
    return found


def with_keys(layers: Sequence[Layer], share: float) -> tuple[Layer, ...]:
    """Layers in which each token attends to `share` times as many others; windows stay."""
    known: dict[str, Layer] = {}
    for layer in layers:
        if layer.signature not in known:
            known[layer.signature] = _with_keys(layer, share)
    return tuple(replace(known[layer.signature], name=layer.name, inputs=layer.inputs) for layer in layers)


def _with_keys(layer: Layer, share: float) -> Layer:
    def changed(one: Any) -> Any:
        is_whole = isinstance(one, Attention) and one.keys % one.queries == 0
        return replace(one, keys=max(1, round(share * one.keys))) if is_whole else one

    operators = tuple(map(changed, layer.operators))
    if operators == layer.operators:
        return layer
    kept = tuple(one._replace(elements=round(share * one.elements)) if one.name in _SCORES else one for one in layer.kept)
    return replace(layer, signature=f"{layer.signature}[keys={share:.4f}]", operators=operators, kept=kept)
