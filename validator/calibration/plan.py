"""Plan of a calibration: the probes to run, on which ranks, and with what share of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import ModelSpec
from scaleproof.validator.calibration.gpu_sizes import GpuSizes
from scaleproof.validator.calibration.sites import Site
from scaleproof.validator.probe.pairs import RankPair

# Relative share of the time of each probe.
SHARES: Final = {
    "matmul": 6.0,
    "attention": 2.0,
    "memory": 3.0,
    "launch": 1.0,
    "host_copy": 1.0,
    "optimizer": 5.0,
    "layer": 24.0,
    "message": 8.0,
    "collective": 10.0,
    "overlap": 2.0,
    "update": 2.0,
    "loading": 1.0,
    "host_adam": 2.0,
}
NAMES: Final = tuple(SHARES)
# Probes of one rank's device. They are run as one unless some of them, but not layers, are requested.
DEVICE: Final = frozenset({"matmul", "attention", "memory", "launch", "optimizer", "layer"})
# Message sizes: small ones for the latency, large ones for the bandwidth.
MESSAGE_BYTES: Final = (4, 64, 1024, *(4**power for power in range(6, 13)))
STREAM_BYTES: Final = (4, 256, 4096, 2**16, 2**18)
COLLECTIVE_BYTES: Final = (4, 2**12, *(4**power for power in range(8, 13)))
# Bytes of the all-reduces, and side and precision of the products that overlap with them.
_OVERLAP: Final = (2**22, 256, "fp32")
_EXAMPLES: Final = 2
# Messages and collectives over a network take longer than those within a machine's memory.
_NETWORK_WEIGHT: Final = 2.0
# So do the first ones between GPUs, which connect them.
_GPU_WEIGHT: Final = 3.0


@dataclass(frozen=True)
class ProbePlan:
    """What to measure.

    models: models whose layers are measured. names: probes to run, all if empty. groups: group sizes for collectives; 2, half
    and all ranks if empty. budget_s: seconds for all probes together. timeout_s: a probe that exceeds its budget by this has
    failed. gpu: sizes of the probes of GPUs; None to probe cores. files: folder of samples that the probe "loading" reads and
    decodes, in place of batches of random data.
    """

    models: Sequence[ModelSpec]
    names: Sequence[str] = ()
    groups: Sequence[int] = ()
    precision: str = "fp32"
    budget_s: float = 35.0
    timeout_s: float = 120.0
    gpu: GpuSizes | None = None
    files: Path | None = None

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in NAMES]:
            raise InputError(f"--probe {unknown[0]}: no such probe; give one of {', '.join(NAMES)}")
        if any(ranks < 2 for ranks in self.groups):
            raise InputError("--groups: a group needs at least 2 ranks")
        if self.files is not None and self.names and "loading" not in self.names:
            raise InputError("--files: only the probe loading reads files; add --probe loading")

    @property
    def ranks(self) -> int:
        """Number of ranks needed for the groups, if ranks are started on this machine."""
        return max(self.groups, default=4)


@dataclass(frozen=True)
class Task:
    """One call of a probe on the first `ranks` ranks of a site, on all if None.

    name: of the probe. what: description for progress messages. arguments: without the budget in seconds, which comes last.
    """

    name: str
    what: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    budget_s: float
    ranks: int | None = None


def tasks(plan: ProbePlan, site: Site, cluster: Cluster | None) -> list[Task]:
    """Tasks in the order in which they run, each with its share of the time.

    Raises InputError if several machines are not described, a group has more ranks than there are, or there are no files.
    """
    from scaleproof.validator.probe import loading

    machines = len(site.heads)
    if machines > (cluster.nodes if cluster else 1):
        known = (
            f"{cluster.name or 'the cluster'} has {cluster.nodes}" if cluster else "no description says how they are connected"
        )
        raise InputError(
            f"ranks are on {machines} machines, but {known}; describe all of them in a file and name it with --cluster"
        )
    if (most := max(plan.groups, default=0)) > site.ranks:
        raise InputError(f"--groups {most}: there are {site.ranks} ranks; give groups of at most {site.ranks}")
    network = _network(plan, site, cluster)
    chosen = [*_gpu(plan.gpu), *network] if plan.gpu else [*_device(plan, site), *network, *_host(plan, site)]
    if plan.files is not None:
        if next(loading.files_of(plan.files), None) is None:
            raise InputError(f"--files {plan.files}: there are no files; give a folder of samples")
        chosen.append(Task("loading", f"files of {plan.files.name}", loading.files, (plan.files,), SHARES["loading"], 1))
    if plan.names:
        chosen = [task for task in chosen if task.name in plan.names]
    scale = plan.budget_s / sum(task.budget_s for task in chosen) if chosen else 0.0
    return [replace(task, budget_s=task.budget_s * scale) for task in chosen]


def groups_of(plan: ProbePlan, site: Site) -> list[list[int]]:
    """Ranks of each group over which collectives are measured: within one node, one rank of each of several nodes, all
    ranks."""
    nodes = len(site.heads)
    whole = [site.heads, list(range(site.ranks)) if nodes == 1 else site.ranks_of(0)]
    groups = [ranks[:size] for ranks in whole for size in (plan.groups or _group_sizes(len(ranks))) if 2 <= size <= len(ranks)]
    return [list(ranks) for ranks in dict.fromkeys(map(tuple, [*groups, *([range(site.ranks)] if nodes > 1 else [])]))]


def _disjoint(pairs: Sequence[RankPair], group: str) -> Sequence[RankPair]:
    """Up to `_EXAMPLES` pairs of one class, no two with a rank in common."""
    chosen: list[RankPair] = []
    for pair in pairs:
        if pair.group == group and not any({pair.first, pair.second} & {other.first, other.second} for other in chosen):
            chosen.append(pair)
    return chosen[:_EXAMPLES]


def _group_sizes(ranks: int) -> Sequence[int]:
    """2, half and all ranks."""
    return sorted({2, ranks // 2, ranks})


def _network(plan: ProbePlan, site: Site, cluster: Cluster | None) -> Iterator[Task]:
    """Probes of communication between ranks; none for one rank."""
    from scaleproof.validator.probe import collectives, network, overlap, pairs

    if site.ranks < 2:
        return
    several = len(site.heads) > 1
    weight = (_NETWORK_WEIGHT if several else 1.0) * (_GPU_WEIGHT if plan.gpu else 1.0)
    message_bytes, collective_bytes = (plan.gpu.message_bytes,) * 2 if plan.gpu else (MESSAGE_BYTES, COLLECTIVE_BYTES)
    known, sockets = (pairs.places(site.nodes, cluster, site.sockets) if cluster else None), site.sockets
    where = known or [pairs.RankPlace(0, 0, socket) for socket in sockets]
    chosen = pairs.choose(where)
    examples = [pair for group in dict.fromkeys(pair.group for pair in chosen) for pair in _disjoint(chosen, group)]
    if plan.gpu:
        chosen = examples

    def task(name: str, what: str, function: Callable[..., Any], share: float, *arguments: Any) -> Task:
        return Task(name, what, function, arguments, weight * SHARES[name] * share)

    between = f"{len(chosen)} pairs of ranks" if len(chosen) > 1 else "two ranks"
    yield task("message", f"messages between {between}", network.messages, 0.5, chosen, message_bytes)
    if several:
        yield task("message", "messages in a row", network.streams, 0.3, examples, STREAM_BYTES)
        yield task("message", "messages behind a long one", network.behind_streams, 0.06, examples[:1], (2**20,))
    if several or plan.gpu:
        exchanged = (0.2, examples, message_bytes[-2:]) if plan.gpu else (0.04, examples[:1], (2**20,))
        yield task("message", "messages in both directions", network.exchanges, *exchanged)
    if len(site.heads) > 2:
        yield task("message", "messages from many ranks to one", network.incast, 0.1, [site.heads], (4096, 2**20))
    groups = groups_of(plan, site)
    sums, others = collectives.OPS[:1], collectives.OPS[1:]
    for what, ops in (("allreduce", sums), ("other collectives", others)):
        title = f"{what} over {', '.join(dict.fromkeys(str(len(ranks)) for ranks in groups))} ranks"
        yield task("collective", title, collectives.collectives, 0.5, groups, site.nodes, ops, collective_bytes)
    sizes = (plan.gpu.overlap_bytes, plan.gpu.overlap_side, plan.gpu.kernel_precision) if plan.gpu else _OVERLAP
    if plan.gpu:
        uneven = (groups, site.nodes, collective_bytes[-2:])
        yield task("collective", "all-to-alls of unequal parts", collectives.uneven_all_to_alls, 0.1, *uneven)
    yield task("overlap", "overlap of computation and communication", overlap.overlap, 1.0, [list(range(site.ranks))], *sizes)


def _device(plan: ProbePlan, site: Site) -> Iterator[Task]:
    """Probes of the device: one rank alone, then as many concurrent ranks as there are cores, to measure what they share.

    The layer probe includes the other device probes, since a file's device is fitted to all of them.
    """
    from scaleproof.validator.calibration.fit import device
    from scaleproof.validator.probe import compute, products

    models, precision = tuple(plan.models), plan.precision
    if "layer" in plan.names or DEVICE.isdisjoint(plan.names):
        share = sum(SHARES[name] for name in DEVICE)
        yield Task("layer", "computation of one rank", device.probe, (models, precision), 0.8 * share, 1)
        if site.concurrent > 1:
            what = f"layers of {site.concurrent} concurrent ranks"
            yield Task("layer", what, device.probe, (models, precision), 0.2 * share, site.concurrent)
        return
    probes: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "matmul": (products.products, (products.SHAPES, (precision,))),
        "attention": (compute.attentions, (compute.ATTENTIONS, precision)),
        "memory": (compute.memory, (compute.SIZES_BYTES, precision)),
        "launch": (compute.launches, ()),
        "optimizer": (compute.optimizers, (models[:1], precision, ("sgd", "momentum", "adam"))),
    }
    for name, (function, arguments) in probes.items():
        yield Task(name, name, function, arguments, SHARES[name], 1)


def _gpu(sizes: GpuSizes) -> Iterator[Task]:
    """Probes of one GPU, each with its seconds. Updates of servers consist of additions and optimizer steps, which are among
    them."""
    from scaleproof.validator.calibration.fit.gpu import layers
    from scaleproof.validator.probe import compute, gpu, host, products
    from scaleproof.validator.train.capabilities import OPTIMIZERS

    yield Task("matmul", "matrix products", products.products, (sizes.products, sizes.precisions), 14.0, 1)
    precision = sizes.kernel_precision
    yield Task("matmul", "more matrix products", products.products, (sizes.more_products, [precision]), 8.0, 1)
    yield Task("attention", "attention", compute.attentions, (sizes.attentions, precision), 10.0, 1)
    yield Task("memory", "memory", compute.memory, (sizes.memory_bytes, "fp32"), 12.0, 1)
    yield Task("launch", "launches", gpu.launches, (), 3.0, 1)
    yield Task("host_copy", "copies from and to the host", host.copies, (sizes.copy_bytes,), 6.0, 1)
    yield Task("host_adam", "Adam on the host", host.adam, (sizes.host_parameters,), 4.0, 1)
    yield Task("host_copy", "copies between devices", gpu.device_copies, (sizes.copy_bytes,), 6.0, 1)
    for model, precision, samples in sizes.layers:
        what = f"layers of a {model.kind}, {precision}"
        yield Task("layer", what, layers, (model, precision, samples), 8.0, 1)
    for precision in dict.fromkeys(precision for _, precision, _ in sizes.layers):
        arguments = (sizes.optimizer_parameters, precision, OPTIMIZERS)
        yield Task("optimizer", f"optimizers, {precision}", gpu.optimizers, arguments, 8.0, 1)
    # last, since it heats the device
    sustained_s, long = sizes.sustained_s * len(sizes.precisions), (sizes.sustained_side, sizes.precisions)
    yield Task("matmul", "sustained matrix products", products.sustained, long, sustained_s, 1)


def _host(plan: ProbePlan, site: Site) -> Iterator[Task]:
    """Probes of parameter-server updates, of preparing batches, and of what states cost that are moved out of devices; the
    last only by name in a lab, whose hosts share one machine's memory."""
    from scaleproof.validator.probe import host, loading, servers

    share = SHARES["update"]
    yield Task("update", "updates of a parameter server", servers.updates, ((1, 4), ("sgd", "adam"), servers.SIZES), share, 1)
    if plan.files is None:
        yield Task("loading", "preparing batches", loading.loading, (plan.models[0], (8, 64), None), SHARES["loading"], 1)
    if site.on != "netlab" or plan.names:
        yield Task("host_copy", "copies from and to the host", host.copies, (host.COPY_BYTES,), SHARES["host_copy"], 1)
        yield Task("host_adam", "Adam on the host", host.adam, (host.PARAMETERS,), SHARES["host_adam"], 1)
