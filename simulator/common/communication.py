"""Names of communication: the parallel dimension that it belongs to, and its collective or message."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from numpy.typing import ArrayLike

# Number of communication or of a layer that is not known.
UNKNOWN: Final = -1


class Dimension(IntEnum):
    """The parallel dimension of communication.

    DATA sums gradients of replicas; ZERO and FSDP also shard and gather states or parameters. SEQUENCE gathers and scatters
    activations that tensor-parallel ranks shard along the sequence. MODEL is a model divided over devices without a pipeline.
    EMBEDDING sums gradients of weights that two ranks of a model share. SERVER is a parameter server. TO_HOST and FROM_HOST are
    copies between the memory of a device and that of its host. TABLES exchanges indices and rows of embedding tables, FEATURES
    what contrastive losses compare.
    """

    DATA = 0
    ZERO = 1
    FSDP = 2
    TENSOR = 3
    SEQUENCE = 4
    CONTEXT = 5
    EXPERT = 6
    PIPELINE = 7
    MODEL = 8
    EMBEDDING = 9
    SERVER = 10
    TO_HOST = 11
    FROM_HOST = 12
    TABLES = 13
    FEATURES = 14

    @property
    def label(self) -> str:
        """The name that users read, such as 'TP'."""
        return _LABELS[self]


class Collective(IntEnum):
    """A collective, or a message from one rank to another."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    ALL_TO_ALL = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    SEND = 8
    PUSH = 9
    PULL = 10

    @property
    def label(self) -> str:
        """The name that users read, such as 'all-reduce'."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, op: str) -> Collective:
        """The collective with a name of `simulator.cluster.collectives`, such as 'all_reduce'."""
        return cls[_OTHER_NAMES.get(op, op).upper()]


_LABELS: Final = {
    Dimension.DATA: "DP", Dimension.ZERO: "ZeRO", Dimension.FSDP: "FSDP", Dimension.TENSOR: "TP", Dimension.SEQUENCE: "SP",
    Dimension.CONTEXT: "CP", Dimension.EXPERT: "EP", Dimension.PIPELINE: "PP", Dimension.MODEL: "MP",
    Dimension.EMBEDDING: "embedding", Dimension.SERVER: "PS",
    Dimension.TO_HOST: "to host", Dimension.FROM_HOST: "from host",
    Dimension.TABLES: "table", Dimension.FEATURES: "feature",
}  # fmt: skip
_OTHER_NAMES: Final = {"alltoall": "all_to_all", "sendrecv": "send"}


def number_of(dimension: Dimension, collective: Collective) -> int:
    """The number of a dimension and a collective, by which columns of programs and spans name communication."""
    return dimension * len(Collective) + collective


def named(number: int) -> tuple[Dimension, Collective]:
    """The dimension and the collective with this number."""
    dimension, collective = divmod(number, len(Collective))
    return Dimension(dimension), Collective(collective)


def label_of(number: int) -> str:
    """The name of communication by its number, such as 'TP all-reduce'; empty if it is not known."""
    return "" if number < 0 else " ".join(part.label for part in named(number))


def layers_label(first: int, last: int) -> str:
    """Words for the layers from `first` to `last`, such as 'layer 12' or 'layers 0-11'; empty if they are not known."""
    if first < 0:
        return ""
    return f"layer {first}" if last <= first else f"layers {first}-{last}"


class Communication(NamedTuple):
    """What a task, or each task of a block, communicates: numbers, or arrays that broadcast to the tasks.

    communication: `number_of` its dimension and collective. message_bytes: size of each message, or of the whole buffer of a
    collective, as nccl-tests count it. calls: number of equivalent messages of a sender that the task stands for. first_layer,
    last_layer: layers that it concerns.
    """

    communication: ArrayLike = UNKNOWN
    message_bytes: Any = 0.0
    calls: ArrayLike = 1
    first_layer: ArrayLike = UNKNOWN
    last_layer: ArrayLike = UNKNOWN

    @classmethod
    def of(
        cls, dimension: Dimension, op: Collective | str, message_bytes: Any, layers: range | None = None, calls: int = 1
    ) -> Communication:
        """A message or collective; op: a Collective, or its name in `simulator.cluster.collectives`."""
        collective = op if isinstance(op, Collective) else Collective.of(op)
        first, last = (layers[0], layers[-1]) if layers else (UNKNOWN, UNKNOWN)
        return cls(number_of(dimension, collective), message_bytes, calls, first, last)


UNLABELLED: Final = Communication()
