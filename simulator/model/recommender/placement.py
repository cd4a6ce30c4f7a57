"""Placement of embedding tables: which worker owns which rows and columns of which table.

Table-wise, row-wise and column-wise sharding and replication are those of TorchRec (doi 10.1145/3523227.3547387).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, Self, cast, get_args

from pydantic import Field, model_validator

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import MAX_WIDTH, Count, Spec, Width
from scaleproof.simulator.model.recommender import greedy
from scaleproof.simulator.model.recommender.lookups import LookupDistribution, RowOptimizer

# The most that shares of a distribution may differ from one in sum.
_ROUNDING: Final = 1e-6
_PLACE: Final = ("strategy", "tables")
# Share of the rows that devices have a copy of, if not given.
_CACHE: Final = 0.1
# Ways to divide tables that plans compare.
_SHARDS: Final[tuple[Literal["column", "table", "row"], ...]] = ("column", "table", "row")
TABLE_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}


class EmbeddingTable(Spec):
    """An embedding table, or `count` equal ones. Each sample looks up `pooling` rows on average, whose sum is the output."""

    rows: Width
    dim: Width = Field(description="width of a row in elements")
    pooling: float = Field(1.0, gt=0, le=1e6, description="mean number of rows that a sample looks up and sums")
    count: Count = Field(1, description="number of equal tables")
    skew: float = Field(1.0, ge=0, le=10, description="exponent of Zipf's law of lookups; 0 if all rows are equally frequent")
    hot: Annotated[tuple[float, ...], Field(max_length=1000)] = Field(
        (), description="in place of skew: shares of the lookups of equal parts of the rows, most frequent first; sum to one"
    )

    @model_validator(mode="after")
    def _is_distribution(self) -> Self:
        if self.hot and (abs(sum(self.hot) - 1) > _ROUNDING or min(self.hot) < 0):
            total = f"{sum(self.hot):.6g}" if min(self.hot) >= 0 else "with a negative share"
            raise ValueError(f"hot: shares of lookups sum to {total}, not 1; give shares that sum to one, or skew")
        if len(self.hot) > self.rows:
            raise ValueError(f"hot: {len(self.hot)} shares for {self.rows} rows; give at most one for each row")
        return self

    @property
    def distribution(self) -> LookupDistribution:
        """How lookups are distributed over rows."""
        return LookupDistribution(self.rows, self.skew, self.hot)


class Tables(Spec):
    """Where embedding tables are, and how they are divided over workers.

    shard: whole tables; ranges of rows, one for each worker; ranges of columns; or replicas on all workers (data), whose dense
    gradients are summed like others. plan: owners by the greedy rule, or given, one for each table or range of columns.
    """

    shard: Literal["table", "row", "column", "data"] = "table"
    on: Literal["workers", "servers", "host"] = Field(
        "workers", description="memory of workers' devices, or of their hosts with a cache on devices"
    )
    plan: Literal["greedy"] | Annotated[tuple[int, ...], Field(min_length=1, max_length=100_000)] = Field(
        "greedy", description="greedy, or the worker that owns each table or range of columns"
    )
    balance: Literal["lookups", "memory"] = Field("lookups", description="what the greedy plan balances")
    replicate_below: int = Field(
        0, ge=0, le=MAX_WIDTH, description="tables with fewer rows are replicated, and their gradients summed"
    )
    least_columns: int = Field(
        4, ge=1, le=MAX_WIDTH, description="width of a range of columns at least: FBGEMM's kernels read four elements at once"
    )
    cache: float = Field(_CACHE, gt=0, le=1, description="on hosts: share of the rows that devices have a copy of")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="of the rows of sharded tables")
    optimizer: RowOptimizer = Field("rowwise_adagrad", description="of sharded tables, fused into their backward pass")
    overlap_input: bool = Field(False, description="exchange the indices of the next batch during a step")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.on == "servers":
            message = "servers have tables with strategy.kind=parameter_server and strategy.sparse; use that, workers or host"
            raise ValueError(f"on: {message}")
        if self.plan != "greedy" and self.shard not in ("table", "column"):
            raise ValueError(f"plan: shard={self.shard} leaves nothing to assign; leave plan out")
        if self.on != "host" and self.cache != _CACHE:
            raise ValueError(
                "cache: only rows in the memory of hosts have copies on devices; give on: host too, or leave cache out"
            )
        return self

    def is_sharded(self, table: EmbeddingTable) -> bool:
        """Whether workers have parts of a table, instead of replicas."""
        return self.shard != "data" and table.rows >= self.replicate_below


class TablePart(NamedTuple):
    """The rows and columns of a table that a worker owns. table: number of the table, each of `count` equal ones counted."""

    table: int
    owner: int
    rows: range
    columns: range

    @property
    def elements(self) -> int:
        """Number of its parameters."""
        return len(self.rows) * len(self.columns)


def divisions(tables: Sequence[EmbeddingTable], workers: int, own: Tables) -> list[Tables]:
    """Divisions of tables by columns, as wholes, and by rows, with the other options of `own`. By rows, tables with fewer rows
    than workers are replicated."""
    few = min(table.rows for table in tables) < workers
    least = {"row": max(own.replicate_below, workers)} if few else {}
    return [
        own.model_copy(update={"shard": shard, "plan": "greedy", "replicate_below": least.get(shard, own.replicate_below)})
        for shard in _SHARDS
    ]


def divided_with(optimizer: str) -> Tables:
    """Divided tables with the optimizer of the other parameters where it updates rows, else with row-wise Adagrad."""
    return Tables(optimizer=cast(RowOptimizer, optimizer)) if optimizer in get_args(RowOptimizer) else Tables()


def each(tables: Sequence[EmbeddingTable]) -> list[EmbeddingTable]:
    """The tables one by one."""
    return [one for one in tables for _ in range(one.count)]


@functools.lru_cache(maxsize=256)
def place(tables: tuple[EmbeddingTable, ...], how: Tables, workers: int) -> tuple[TablePart, ...]:
    """The parts of all sharded tables with their owners, in order of tables; replicated ones have none. Raises FieldError."""
    sharded = [(number, table) for number, table in enumerate(each(tables)) if how.is_sharded(table)]
    if how.shard == "row":
        return tuple(part for number, table in sharded for part in _row_parts(number, table, workers))
    pieces = [
        (number, table, columns)
        for number, table in sharded
        for columns in _columns(table.dim, min(workers, table.dim // how.least_columns) if how.shard == "column" else 1)
    ]
    owners = _owners([_weight(table, len(columns), how) for _, table, columns in pieces], how, workers)
    return tuple(
        TablePart(number, owner, range(table.rows), columns)
        for (number, table, columns), owner in zip(pieces, owners, strict=True)
    )


def _row_parts(number: int, table: EmbeddingTable, workers: int) -> list[TablePart]:
    if table.rows < workers:
        message = f"{workers} shards for the {table.rows} rows of table {number}"
        raise FieldError((*_PLACE, "shard"), f"{message}; set strategy.tables.replicate_below={workers}, or shard by table")
    bounds = [worker * table.rows // workers for worker in range(workers + 1)]
    return [TablePart(number, worker, range(*bounds[worker : worker + 2]), range(table.dim)) for worker in range(workers)]


def _columns(width: int, most: int) -> list[range]:
    """Equal ranges of the columns of a table, as many as divide its width and are not more than `most`."""
    ranges = next(count for count in range(max(1, min(width, most)), 0, -1) if width % count == 0)
    step = width // ranges
    return [range(begin, begin + step) for begin in range(0, width, step)]


def _weight(table: EmbeddingTable, width: int, how: Tables) -> float:
    return width * (table.rows if how.balance == "memory" else table.pooling)


def _owners(weights: Sequence[float], how: Tables, workers: int) -> Sequence[int]:
    if how.plan == "greedy":
        return greedy.assign(weights, workers)
    if len(how.plan) != len(weights):
        message = f"{len(how.plan)} owners for {len(weights)} parts of tables; give one for each, or plan=greedy"
        raise FieldError((*_PLACE, "plan"), message)
    for owner in how.plan:
        if not 0 <= owner < workers:
            raise FieldError((*_PLACE, "plan"), f"there is no worker {owner}; they are numbered 0 to {workers - 1}")
    return how.plan


def imbalance(tables: tuple[EmbeddingTable, ...], how: Tables, workers: int) -> tuple[float, float]:
    """The heaviest load of a worker over the mean with this placement, and the bound below which no placement of the same parts
    is."""
    parts, one_by_one = place(tables, how, workers), each(tables)
    weights = [
        _weight(one_by_one[part.table], len(part.columns), how) * len(part.rows) / one_by_one[part.table].rows for part in parts
    ]
    mean = sum(weights) / workers
    if not mean:
        return 1.0, 1.0
    heaviest = max(greedy.loads(weights, [part.owner for part in parts], workers))
    return heaviest / mean, greedy.lower_bound(weights, workers) / mean
