"""Compute times of a rank's device: attention, memory-bound kernels, kernel launches, layers and optimizer
steps of models.

Ranks that call a probe concurrently compute at the same time, each independently, and each gets the points of all ranks. Points
are measured in several rounds, because other load on a machine varies over time. budget_s: seconds for everything that a probe
times.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.cluster.device.kernels.attention import BACKWARD_PRODUCTS
from scaleproof.simulator.cluster.device.kernels.cpu_core import backward_work, forward_work
from scaleproof.simulator.model import ModelSpec
from scaleproof.simulator.model.operators import MemoryBound
from scaleproof.simulator.model.recommender.lookups import Looked, Lookup, LookupDistribution
from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import DeviceTimer, Samples, Step, repeat, timed
from scaleproof.validator.probe.peers import collected, wait_for_all
from scaleproof.validator.probe.points import SKIPPED, Point
from scaleproof.validator.probe.probed_model import ProbedModel
from scaleproof.validator.probe.rounds import in_rounds
from scaleproof.validator.train.models.models import DTYPES
from scaleproof.validator.train.optimizers import build_optimizer, build_row_optimizer, update_in_backward

# Group of points of the built-in reference models, see scaleproof.validator.calibration.fit.device.
REFERENCE: Final = "reference"
# (sequences, tokens of each, heads, heads of keys, width) of causal attention.
AttentionSize = tuple[int, int, int, int, int]
ATTENTIONS: Final[tuple[AttentionSize, ...]] = ((1, 64, 4, 4, 32), (2, 256, 4, 2, 64))
# Bytes of a tensor, from sizes that fit into a cache to one that does not.
SIZES_BYTES: Final = (2**14, 2**18, 2**22, 2**25)
_ROW: Final = 256
# Kernels issued in a row, so that the timed interval is long compared with a timer mark.
_IN_A_ROW: Final = 100
_LONG_S: Final = 1e-3


class LookupSize(NamedTuple):
    """Lookups in tables of their own rows and width: `pooling` rows of each table for each sample, whose sum is the output."""

    tables: int
    rows: int
    width: int
    pooling: int
    samples: int


# From few short rows, where calls count, to many wide ones.
LOOKUPS: Final = (
    LookupSize(4, 20_000, 16, 4, 64), LookupSize(4, 20_000, 64, 4, 1024), LookupSize(2, 20_000, 192, 4, 2048),
    LookupSize(8, 20_000, 8, 2, 4096), LookupSize(4, 2_000, 32, 16, 256), LookupSize(1, 200_000, 64, 1, 4096),
)  # fmt: skip
# Samples of the training step that precedes each optimizer step.
_OPTIMIZER_SAMPLES: Final = 2


def attentions(shapes: Sequence[AttentionSize], precision: str, budget_s: float) -> list[dict[str, Any]]:
    """Points of passes of causal attention ("attention"), by the kernel that torch chooses in training: of the forward pass,
    and of the backward pass, whose "what" ends in "backward".

    A backward pass lasts as long as both passes take longer than the forward pass does in the same round. FLOPs are those of
    the scores that the mask leaves, numbers have the names of columns of tables of kernels; "backend" is that of
    torch.nn.attention.SDPBackend which runs.
    """
    device = here().device

    def one_round(budget_s: float) -> Iterator[Point]:
        for batch, seq, heads, kv_heads, head_dim in shapes:
            sizes = [(batch, count, seq, head_dim) for count in (heads, kv_heads, kv_heads)]
            q, k, v = (torch.randn(size, device=device, dtype=DTYPES[precision], requires_grad=True) for size in sizes)
            grouped = kv_heads < heads
            forward = partial(functional.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=grouped)
            alone, both = (repeat(averaged(step), budget_s / (2 * len(shapes))) for step in (forward, _both_passes(forward)))
            what, flops = f"{precision} {batch}x{seq} {heads}/{kv_heads}x{head_dim}", 2.0 * batch * heads * seq**2 * head_dim
            numbers = {"batch": batch, "seq": seq, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
            numbers["backend"] = torch._fused_sdp_choice(q, k, v, is_causal=True, enable_gqa=grouped)
            yield rank_point("attention", what, flops, "flops", alone, **numbers)
            forward_s = statistics.median(alone.seconds)
            longer = both._replace(seconds=tuple(max(second - forward_s, 0.0) for second in both.seconds))
            yield rank_point("attention", f"{what} backward", BACKWARD_PRODUCTS * flops, "flops", longer, **numbers)

    return collected([_with_positive_time(point) for point in in_rounds(one_round, budget_s)])


def _both_passes(forward: partial[Tensor]) -> Callable[[], object]:
    """Function that computes the gradients of a function's inputs."""
    gradient = torch.randn_like(forward())
    return lambda: torch.autograd.grad(forward(), forward.args, gradient)


def _with_positive_time(point: Point) -> Point:
    """The point, without times if their median, which is a difference, is not positive."""
    if point.median_s > 0:
        return point
    return replace(point, seconds=(), stopped=f"{SKIPPED}: both passes take no longer than the forward pass")


def memory(sizes_bytes: Sequence[int], precision: str, budget_s: float) -> list[dict[str, Any]]:
    """Points of memory-bound kernels ("memory") over tensors of `sizes_bytes`; a point's size is the bytes read and written."""
    dtype, device = DTYPES[precision], here().device

    def one_round(budget_s: float) -> Iterator[Point]:
        for size_bytes in sizes_bytes:
            x, y = (torch.randn(size_bytes // (_ROW * dtype.itemsize), _ROW, device=device, dtype=dtype) for _ in range(2))
            kernels: dict[str, tuple[int, Callable[[], object]]] = {
                "copy": (2, partial(x.copy_, y)),
                "add": (3, partial(x.add_, y)),
                "gelu": (2, partial(functional.gelu, x)),
                "softmax": (2, partial(functional.softmax, x, -1)),
                "norm": (2, partial(functional.layer_norm, x, (_ROW,))),
            }
            for what, (passes, kernel) in kernels.items():
                samples = repeat(averaged(kernel), budget_s / (len(sizes_bytes) * len(kernels)))
                yield rank_point("memory", what, float(passes * size_bytes), "bytes", samples)

    return collected(in_rounds(one_round, budget_s))


def launches(budget_s: float) -> list[dict[str, Any]]:
    """Points of kernels over one element ("launch"), whose duration is the launch overhead: without autograd ("kernel") and
    with it ("forward", "backward")."""
    x = torch.ones(1, device=here().device, requires_grad=True)

    def chained() -> Tensor:
        y = x
        for _ in range(_IN_A_ROW):
            y = y * 1.0
        return y

    def backward() -> float:
        y, clock = chained(), DeviceTimer(here().device)
        clock.wait()
        begin = clock.mark()
        y.backward()  # type: ignore[no-untyped-call]
        end = clock.mark()
        clock.wait()
        return clock.seconds(begin, end) / _IN_A_ROW

    def one_round(budget_s: float) -> Iterator[Point]:
        own = torch.zeros(1, device=here().device)
        steps = {"kernel": averaged(partial(own.add_, 1.0)), "forward": timed(chained, _IN_A_ROW), "backward": backward}
        for what, step in steps.items():
            yield rank_point("launch", what, 1.0, "kernels", repeat(step, budget_s / len(steps)))

    return collected(in_rounds(one_round, budget_s))


def layers(
    models: Sequence[ModelSpec], precision: str, samples: Sequence[int], budget_s: float, group: str = ""
) -> list[dict[str, Any]]:
    """Points of every kind of layer of the models ("layer") in training steps over `samples` samples; the last layer includes
    the loss.

    A point's numbers: the work of the layer, see simulator.cluster.device.kernels.cpu_core, and the number of ranks that
    compute concurrently. group: group of the points. Models with batch norms, which need several values of each channel, get
    two samples where one is given.
    """
    dtype, device = DTYPES[precision], here().device
    built: list[tuple[int, ProbedModel]] = []
    for model in models:
        first: ProbedModel | None = None
        fewest = _fewest_samples(model)
        for count in dict.fromkeys(max(fewest, given) for given in samples):
            built.append((count, ProbedModel(model, dtype, device, count, first)))
            first = first or built[-1][1]

    def one_round(budget_s: float) -> Iterator[Point]:
        wait_for_all()
        for count, model in built:
            yield from _layer_points(model, count, budget_s / len(built), group)

    return collected(in_rounds(one_round, budget_s))


def lookups(sizes: Sequence[LookupSize], precision: str, budget_s: float, group: str = "") -> list[dict[str, Any]]:
    """Points of lookups in tables whose touched rows are updated by SGD in the backward pass ("layer"), as in tables that
    workers divide."""

    def one_round(budget_s: float) -> Iterator[Point]:
        for size in sizes:
            yield from _lookup_points(size, precision, budget_s / len(sizes), group)

    return collected(in_rounds(one_round, budget_s))


def _lookup_points(size: LookupSize, precision: str, budget_s: float, group: str) -> Iterator[Point]:
    dtype, device, generator = DTYPES[precision], here().device, np.random.default_rng(0)
    tables = [nn.Parameter(torch.zeros(size.rows, size.width, device=device, dtype=dtype)) for _ in range(size.tables)]
    for table in tables:
        update_in_backward(table, build_row_optimizer("sgd", [table], 1e-6))
    distribution = LookupDistribution(size.rows, skew=1.0)
    # frequent rows are anywhere in a table
    order = torch.from_numpy(generator.permutation(size.rows))
    shape = (size.tables, size.samples, size.pooling)
    rows = order[torch.from_numpy(distribution.drawn(shape, generator))].to(device)
    clock = DeviceTimer(device)
    passes: list[tuple[float, float]] = []

    def step() -> float:
        clock.wait()
        marks = [clock.mark()]
        outputs = torch.cat(
            [functional.embedding_bag(*pair, mode="sum", sparse=True) for pair in zip(rows, tables, strict=True)]
        )
        marks.append(clock.mark())
        gradient = torch.ones_like(outputs)
        marks.append(clock.mark())
        outputs.backward(gradient)  # type: ignore[no-untyped-call]
        marks.append(clock.mark())
        clock.wait()
        passes.append((clock.seconds(*marks[:2]), clock.seconds(*marks[2:])))
        return sum(passes[-1])

    whole = repeat(step, budget_s)
    part = Looked(distribution, size.width, float(size.pooling))
    outputs = size.tables * size.width
    operator = Lookup(
        "lookup", outputs, outputs, outputs, outputs, (part,) * size.tables, element_bytes=dtype.itemsize, optimizer="sgd"
    )
    what = "lookups({tables}x{rows}x{width},{pooling})".format(**size._asdict())
    columns = zip(
        ("forward", "backward"), (forward_work, backward_work), zip(*passes[-len(whole.seconds) :], strict=True), strict=True
    )
    for direction, work, seconds in columns:
        numbers = work([operator], size.samples) | {"ranks": here().ranks}
        taken = whole._replace(seconds=tuple(seconds))
        yield replace(rank_point("layer", f"{what} {direction}", float(size.samples), "samples", taken, **numbers), group=group)


def _fewest_samples(model: ModelSpec) -> int:
    """Number of samples that a model's training step has at least."""
    operators = (operator for layer in model.build_layers() for operator in layer.operators)
    return 2 if any(isinstance(one, MemoryBound) and "batch norm" in one.name.replace("_", " ") for one in operators) else 1


def optimizers(models: Sequence[ModelSpec], precision: str, names: Sequence[str], budget_s: float) -> list[dict[str, Any]]:
    """Points of optimizer steps ("optimizer") over the parameters of each model and of its first half.

    Each step follows a training step, which leaves the caches in the state that training does.
    """
    built = [ProbedModel(model, DTYPES[precision], here().device, _OPTIMIZER_SAMPLES) for model in models]

    def one_round(budget_s: float) -> Iterator[Point]:
        for model in built:
            modules = list(model.layers.values())
            for part in (modules[: len(modules) // 2], modules):
                parameters = list(nn.ModuleList(part).parameters())
                size = sum(parameter.numel() for parameter in parameters)
                for name in names:
                    optimizer = build_optimizer(name, parameters, 1e-6)  # type: ignore[arg-type]
                    step = _update(model, optimizer)
                    taken = repeat(step, budget_s / (2 * len(built) * len(names)))
                    yield rank_point("optimizer", name, float(size), "parameters", taken, tensors=len(parameters))

    return collected(in_rounds(one_round, budget_s))


def _layer_points(model: ProbedModel, count: int, budget_s: float, group: str) -> Iterator[Point]:
    clock = DeviceTimer(here().device)
    steps: list[list[tuple[float, float]]] = []

    def step() -> float:
        steps.append(model.passes_s(clock))
        return sum(chain.from_iterable(steps[-1]))

    # another model may have trained since the last call
    model.passes_s(clock)
    whole = repeat(step, budget_s)
    model.free_gradients()
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    # the steps before the counted ones are the warm-up
    for passes in steps[-len(whole.seconds) :]:
        for spec, seconds in zip(model.specs, passes, strict=True):
            times[spec.signature].append(seconds)
    operators = {spec.signature: spec.operators for spec in model.specs}
    for signature, seconds_of in times.items():
        columns = zip(("forward", "backward"), (forward_work, backward_work), zip(*seconds_of, strict=True), strict=True)
        for direction, work, seconds in columns:
            taken = whole._replace(seconds=tuple(seconds))
            numbers = work(operators[signature], count) | {"ranks": here().ranks}
            point = rank_point("layer", f"{signature} {direction}", float(count), "samples", taken, **numbers)
            yield replace(point, group=group)


def _update(model: ProbedModel, optimizer: torch.optim.Optimizer) -> Step:
    clock = DeviceTimer(here().device)

    def update() -> float:
        model.passes_s(clock)
        begin = clock.mark()
        optimizer.step()
        optimizer.zero_grad()
        end = clock.mark()
        clock.wait()
        return clock.seconds(begin, end)

    # the first step allocates the optimizer's states
    update()
    return update


def averaged(step: Callable[[], object], long_s: float = _LONG_S) -> Step:
    """Step that returns the seconds of `step`, averaged over repetitions that last for about `long_s` seconds or are a hundred,
    by default long compared with the timer marks."""
    once = timed(step)
    for _ in range(2):
        once()
    count = max(1, min(_IN_A_ROW, round(long_s / max(once(), 1e-9))))

    def repeated() -> None:
        for _ in range(count):
            step()

    return timed(repeated, count)


def rank_point(probe: str, what: str, size: float, unit: str, samples: Samples, **numbers: float) -> Point:
    """A point that this rank measured by itself."""
    me = here().rank
    given = {name: float(value) for name, value in numbers.items()}
    return Point(probe, what, f"rank {me}", (me,), "", size, unit, samples.seconds, samples.stopped, samples.cores_busy, given)
