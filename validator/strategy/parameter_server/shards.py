"""Layout of the parameters in one vector: buckets, and each server's part of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from scaleproof.simulator.common.parameter_server import SYNCHRONOUS
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.strategy.parameter_server.shards import tensor_owners
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.data_parallel.buckets import fill
from scaleproof.validator.train.capabilities import sent_tables
from scaleproof.validator.train.data import SparseTable
from scaleproof.validator.train.trained_model import distinct_parameters


@dataclass(frozen=True)
class PushedBucket:
    """Parameters that are pushed together, and pulled together.

    layer: the first layer with a tensor in the bucket. tensors: their numbers in the vector's order. parts: by server its range
    of the vector, without servers that have no parameters.
    """

    layer: int
    tensors: tuple[int, ...]
    parts: Mapping[int, slice]


@dataclass(frozen=True)
class Layout:
    """A model's tensors in buckets, those of the first layers first.

    names: layer number and name of each tensor. sizes: number of elements of each.
    """

    names: tuple[tuple[int, str], ...]
    sizes: tuple[int, ...]
    buckets: tuple[PushedBucket, ...]

    @property
    def order(self) -> list[int]:
        """The tensors' numbers in the vector's order."""
        return [tensor for bucket in self.buckets for tensor in bucket.tensors]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The flat view of each tensor in a vector, by tensor number."""
        parts = torch.split(vector, [self.sizes[tensor] for tensor in self.order])
        return [part for _, part in sorted(zip(self.order, parts, strict=True), key=lambda both: both[0])]

    def ranges(self, bucket: int, server: int) -> list[tuple[int, int, int]]:
        """A server's parts of a bucket's tensors, as (tensor, begin, end)."""
        part, result = self.buckets[bucket].parts[server], []
        begins = dict(zip(self.order, accumulate((self.sizes[tensor] for tensor in self.order), initial=0), strict=False))
        for tensor in self.buckets[bucket].tensors:
            begin = max(part.start - begins[tensor], 0)
            end = min(part.stop - begins[tensor], self.sizes[tensor])
            if begin < end:
                result.append((tensor, begin, end))
        return result


def has_final_parameters(context: Context, strategy: ParameterServer) -> bool:
    """Whether workers have all final parameters after their last pull: no other worker pushes later, and they pull all, in the
    precision in which they are updated."""
    is_last = strategy.consistency == SYNCHRONOUS and not sent_tables(context.scenario)
    return is_last and not context.has_wider_copies


def lay_out(
    layers: Sequence[nn.Module], strategy: ParameterServer, tables: Sequence[SparseTable] = (), pulled: bool = False
) -> Layout:
    """The layout of all layers of a model. tables: those of which rows are sent; pulled: whether the vector has these rows in
    place of whole tables, as workers' have.

    Buckets are filled from the last tensor on, as gradients arrive; without overlap there is one. With `shard: bytes` each
    server has an equal part of each bucket, to one element; else whole tensors, made neighbours. Tables are first in each part.
    """
    tensors = distinct_parameters(layers)
    sizes = [parameter.numel() for _, _, parameter in tensors]
    limit_bytes = strategy.bucket_bytes if strategy.overlap else math.inf
    sent_bytes = [parameter.nbytes for _, _, parameter in tensors]
    is_whole = [True] * len(tensors)
    for table in tables:
        is_whole[table.number] = False
        row_bytes = table.width * tensors[table.number][2].element_size() + torch.int64.itemsize
        sent_bytes[table.number] = table.touched * row_bytes
    filled = fill([parameter for _, _, parameter in tensors], limit_bytes, limit_bytes, sizes_bytes=sent_bytes)
    counts = [len(bucket) for bucket in reversed(filled)]
    owners = None if strategy.shard == "bytes" else tensor_owners(sizes, strategy.servers, strategy.shard).tolist()
    for table in tables if pulled else ():
        sizes[table.number] = table.touched * table.width
    buckets, first, begin = [], 0, 0
    for count in counts:
        numbers = sorted(range(first, first + count), key=lambda tensor: (owners[tensor] if owners else 0, is_whole[tensor]))
        own_sizes = [sizes[tensor] for tensor in numbers]
        if owners is None:
            shares = equal_bounds(sum(own_sizes), strategy.servers)
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
    return Layout(tuple((number, name) for number, name, _ in tensors), tuple(sizes), tuple(buckets))


def equal_bounds(elements: int, servers: int) -> list[int]:
    """Where the parts of servers begin in a vector, and where the last ends: equal parts, to one element."""
    return [elements * server // servers for server in range(servers + 1)]
