"""Constants of the timing of collectives: of a library, a generation of GPUs and a transport, with 90 % intervals."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster.collectives.settings import PROTOCOLS, Adjust, Nccl, Protocol
from scaleproof.simulator.cluster.network.links import Link, Node
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import UnitError
from scaleproof.simulator.common.units import parse_Bps, parse_time_s

# Files of scenarios/collectives, whose constants a collective's timing needs: one entry of each.
FILES: Final = ("libraries", "generations", "transports")
# Half width of a normal variable's 90 % interval in standard deviations.
_DEVIATIONS: Final = 1.6449
# Cards below 50 Gbit/s seldom have RDMA.
_SLOWEST_RDMA_Bps: Final = 50e9 / 8


class FittedValue(NamedTuple):
    """A constant in seconds, bytes per second or as a share, and its 90 % interval."""

    value: float
    low: float
    high: float

    @property
    def deviation(self) -> float:
        """Standard deviation of the constant's logarithm."""
        return math.log(self.high / self.low) / (2 * _DEVIATIONS)


# Constants by file (libraries, generations, transports), entry (nccl, hopper, efa) and name.
Tables = Mapping[str, Mapping[str, Mapping[str, FittedValue]]]


@dataclass(frozen=True)
class TimingConstants:
    """Constants of the timing of one cluster's collectives; protocols in the order LL, LL128, Simple.

    launch_s: of a collective: the kernel's launch and the events between streams. inside_step_s, between_step_s: of a step
    inside a node and between nodes. nvls_step_s: of a reduction or multicast by NVSwitch. post_s: to post one message to the
    network. inside_share: reached over NCCL's expected rate of the links inside a node. nvls_share: the same for NVSwitch.
    between_share: the same between nodes, of all protocols. local_step: time of a ring's step that only copies or sums local
    data, over that of a step that also sends. inside_chunk_s, between_chunk_s: synchronisation per chunk of a pipelined
    transfer. peer_Bps: largest rate from a node to one rank of another node. peer_s: of each peer of concurrent messages.
    line_chunk: the synchronisation per chunk of LL and LL128, which check each line that they receive, over that of Simple.
    sharp_s: of a reduction by the network's switches. sharp_share: reached over the rate between nodes without them.
    registered_step, registered_rate: an NVLS step, and its rate, on registered buffers over those with copies. barrier_s: of
    the ranks of a symmetric kernel. symmetric_share: reached by such kernels over NCCL's expected rate. symmetric_ll_bytes:
    their cost of a byte with LL's flags, in bytes without.
    """

    launch_s: float
    inside_step_s: tuple[float, ...]
    between_step_s: tuple[float, ...]
    nvls_step_s: float
    post_s: float
    inside_share: tuple[float, ...]
    nvls_share: float
    between_share: float
    local_step: float
    inside_chunk_s: float
    between_chunk_s: float
    peer_Bps: float
    peer_s: float
    line_chunk: float
    sharp_s: float
    sharp_share: float
    registered_step: float
    registered_rate: float
    barrier_s: float
    symmetric_share: float
    symmetric_ll_bytes: float

    @property
    def known_latencies_s(self) -> tuple[float, float]:
        """Seconds until the smallest message of a sendrecv arrives inside a node, and between nodes: the launch, a step of LL,
        and the posting of the message.

        By this the constants contain the latency of a machine room's links, as a program notices it. What a link states beyond
        it delays each step.
        """
        inside_s = self.launch_s + self.inside_step_s[0] + self.peer_s
        return inside_s, self.launch_s + self.between_step_s[0] + self.post_s + self.peer_s

    def for_protocol(self, protocol: Protocol) -> tuple[float, float, float, float]:
        """Step inside, step between, share inside and share between of a protocol."""
        index = PROTOCOLS.index(protocol)
        return self.inside_step_s[index], self.between_step_s[index], self.inside_share[index], self.between_share


_replaced: ContextVar[Tables | None] = ContextVar("replaced constants", default=None)


@contextlib.contextmanager
def replaced(tables: Tables) -> Iterator[None]:
    """Uses other constants than the shipped ones within its block, such as those fitted without a source."""
    token = _replaced.set(tables)
    try:
        yield
    finally:
        _replaced.reset(token)


def current() -> Tables:
    """The constants in use: the shipped ones, or those given by `replaced`."""
    return _replaced.get() or shipped()


def constants_of(facts: Nccl, transport: str, adjust: Adjust, staged: bool = False) -> TimingConstants:
    """Constants of a cluster's collectives. staged: whether messages inside a node pass the host's memory."""
    return (
        _shipped_constants(facts, transport, adjust, staged)
        if _replaced.get() is None
        else derived(current(), facts, transport, adjust, staged)
    )


@functools.lru_cache(maxsize=256)
def _shipped_constants(facts: Nccl, transport: str, adjust: Adjust, staged: bool) -> TimingConstants:
    return derived(shipped(), facts, transport, adjust, staged)


def derived(tables: Tables, facts: Nccl, transport: str, adjust: Adjust, staged: bool = False) -> TimingConstants:
    """Constants from tables: a protocol's are those of LL times the library's ratios."""
    entries = {
        "libraries": "rccl" if facts.generation == "cdna" else "nccl",
        "generations": facts.generation,
        "transports": transport,
    }
    library, generation, network = (
        {name: field.value for name, field in tables[file][entry].items()} for file, entry in entries.items()
    )
    inside_s = generation["step"] * adjust.latency_inside * (library["pcie_step"] if facts.interconnect == "pcie" else 1.0)
    between_s = network["step"] * adjust.latency_between
    through_host = library["staged_rate"] if staged else 1.0
    rates = (library["ll_rate"], generation["ll128_rate"], generation["simple_rate"] * through_host)
    return TimingConstants(
        launch_s=generation["launch"] * adjust.launch,
        inside_step_s=(inside_s, library["ll128_step"] * inside_s, library["simple_step"] * inside_s),
        between_step_s=(between_s, library["ll128_network_step"] * between_s, library["simple_network_step"] * between_s),
        nvls_step_s=library["nvls_step"] * adjust.latency_inside,
        post_s=network["post"] * adjust.latency_between,
        inside_share=tuple(rate * adjust.rate_inside for rate in rates),
        nvls_share=library["nvls_rate"] * adjust.rate_inside,
        between_share=network["rate"] * adjust.rate_between,
        local_step=library["local_step"],
        inside_chunk_s=library["chunk"] * adjust.latency_inside,
        between_chunk_s=network["chunk"] * adjust.latency_between,
        peer_Bps=network["peer_rate"] * adjust.rate_between,
        peer_s=library["peer"] * adjust.latency_inside,
        line_chunk=library["line_chunk"],
        sharp_s=library["sharp_step"] * adjust.latency_between,
        sharp_share=library["sharp_rate"],
        registered_step=library["registered_step"],
        registered_rate=library["registered_rate"],
        barrier_s=library["barrier"] * inside_s,
        symmetric_share=library["symmetric_rate"] * adjust.rate_inside,
        symmetric_ll_bytes=library["symmetric_ll_bytes"],
    )


@functools.cache
def shipped() -> Tables:
    """The constants of scenarios/collectives."""
    return {name: _table(name) for name in FILES}


def priors() -> Tables:
    """What was known of the constants before measurements; fits start here."""
    return {name: _table(name, prior=True) for name in FILES}


def default_transport(network: Link, node: Node) -> str:
    """Name of the usual transport of a network that does not state one: TCP sockets on slow cards, else InfiniBand."""
    return "sockets" if network.bandwidth_Bps / node.cards_used < _SLOWEST_RDMA_Bps else "infiniband"


def pytorch_call_s() -> float:
    """Seconds that a collective takes longer if PyTorch calls it alone and waits for it."""
    return current()["libraries"]["nccl"]["pytorch_call"].value


def transports() -> tuple[str, ...]:
    """Names of the shipped network transports."""
    return tuple(shipped()["transports"])


def _table(name: str, prior: bool = False) -> dict[str, dict[str, FittedValue]]:
    entries: Mapping[str, Mapping[str, Mapping[str, Any]]]
    entries = yaml_file.shipped(catalog.ROOT / "collectives" / f"{name}.yaml")[name]
    return {
        entry: {key: _prior(field) if prior else _value(field) for key, field in fields.items()}
        for entry, fields in entries.items()
    }


def _value(field: Mapping[str, Any]) -> FittedValue:
    return FittedValue(*(_number(field[part]) for part in FittedValue._fields))


def _prior(field: Mapping[str, Any]) -> FittedValue:
    """The prior of a constant, whose median is in the middle of its interval's logarithms; the constant itself without one."""
    if "prior" not in field:
        return _value(field)
    low, high = map(_number, field["prior"])
    return FittedValue(math.sqrt(low * high), low, high)


def _number(value: object) -> float:
    """A constant in SI units."""
    if not isinstance(value, str):
        return float(value)  # type: ignore[arg-type]
    with contextlib.suppress(UnitError):
        return parse_time_s(value)
    return parse_Bps(value)
