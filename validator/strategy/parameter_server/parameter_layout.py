"""Layout: where every server's part of the parameters is, in one vector that holds them all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.strategy.data_parallel.buckets import fill
from scaleproof.validator.strategy.layout.flat import pack


@dataclass(frozen=True)
class PushedBucket:
    """Parameters that are pushed together, and pulled together.

    layer: the first of those that have some of them. tensors: their numbers, as the vector has them one after the other.
    parts: of each server that has any of it, from where to where in the vector.
    """

    layer: int
    tensors: tuple[int, ...]
    parts: Mapping[int, slice]


@dataclass(frozen=True)
class Layout:
    """A model's tensors in buckets, those of the first layers first. sizes: elements of each tensor."""

    sizes: tuple[int, ...]
    buckets: tuple[PushedBucket, ...]

    @property
    def order(self) -> list[int]:
        """The tensors' numbers, as the vector has them."""
        return [tensor for bucket in self.buckets for tensor in bucket.tensors]

    def vector(self, parameters: Sequence[Tensor]) -> Tensor:
        """All of them as one vector, copied."""
        return pack(parameters[tensor] for tensor in self.order)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Each tensor's part of a vector, flat, by its number."""
        parts = torch.split(vector, [self.sizes[tensor] for tensor in self.order])
        return [part for _, part in sorted(zip(self.order, parts, strict=True), key=lambda both: both[0])]

    def held(self, bucket: int, server: int) -> list[tuple[int, int, int]]:
        """What a server has of a bucket: the number of each tensor, and from where to where in it."""
        part, result = self.buckets[bucket].parts[server], []
        begins = dict(zip(self.order, accumulate((self.sizes[tensor] for tensor in self.order), initial=0), strict=False))
        for tensor in self.buckets[bucket].tensors:
            begin = max(part.start - begins[tensor], 0)
            end = min(part.stop - begins[tensor], self.sizes[tensor])
            if begin < end:
                result.append((tensor, begin, end))
        return result


def lay_out(layers: Mapping[int, nn.Module], strategy: ParameterServer) -> Layout:
    """Buckets are filled from the last tensor on, as gradients come; without overlap there is one. Of `bytes` every server has
    an equal part of each bucket, to one element; else it has whole tensors, which are then neighbours."""
    tensors = [(number, parameter) for number, layer in layers.items() for parameter in layer.parameters()]
    sizes = [parameter.numel() for _, parameter in tensors]
    limit_bytes = strategy.bucket_bytes if strategy.overlap else math.inf
    counts = [len(bucket) for bucket in reversed(fill([one for _, one in tensors], limit_bytes, limit_bytes))]
    owners = None if strategy.shard == "bytes" else _owners(sizes, strategy)
    buckets, first, begin = [], 0, 0
    for count in counts:
        numbers = sorted(range(first, first + count), key=lambda tensor: owners[tensor] if owners else 0)
        own_sizes = [sizes[tensor] for tensor in numbers]
        if owners is None:
            shares = [sum(own_sizes) * server // strategy.servers for server in range(strategy.servers + 1)]
        else:
            shares = [
                sum(size for tensor, size in zip(numbers, own_sizes, strict=True) if owners[tensor] < server)
                for server in range(strategy.servers + 1)
            ]
        parts = {
            server: slice(begin + shares[server], begin + shares[server + 1])
            for server in range(strategy.servers)
            if shares[server] < shares[server + 1]
        }
        buckets.append(PushedBucket(tensors[first][0] if first else 0, tuple(numbers), parts))
        first, begin = first + count, begin + sum(own_sizes)
    return Layout(tuple(sizes), tuple(buckets))


def _owners(sizes: Sequence[int], strategy: ParameterServer) -> list[int]:
    """The server that has each tensor: the next in turn, or the one that has the least by then."""
    if strategy.shard == "round_robin":
        return [tensor % strategy.servers for tensor in range(len(sizes))]
    owners, held = [], [0] * strategy.servers
    for size in sizes:
        owners.append(held.index(min(held)))
        held[owners[-1]] += size
    return owners
