"""Workers of parameter servers: compute gradients, push them, and pull parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.validator.record.steps import steps_of_worker, warmup_steps
from scaleproof.validator.strategy.base import Context, WholeModel
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import replace_values
from scaleproof.validator.strategy.layout.messages import wait_all
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.parameter_server.links import Links
from scaleproof.validator.strategy.parameter_server.pulled_table import PulledTable
from scaleproof.validator.strategy.parameter_server.shards import has_final_parameters, lay_out
from scaleproof.validator.strategy.parameter_server.sparse_rows import RowMessages, Rows, touched_rows
from scaleproof.validator.strategy.parameter_server.work_units import UnitRequests
from scaleproof.validator.train.data import Batch, sparse_tables
from scaleproof.validator.train.layer_graph import Values, as_tuple, data_name
from scaleproof.validator.train.models.wiring import DATA, Wire


class Worker(WholeModel):
    """A worker that computes, pushes and pulls one after the other.

    Parameters and gradients are views of one vector each, so that servers' parts need no copies. Of tables of which rows are
    sent they have the rows of a step. node_team: the workers of a
    node that push together, by the first of them; None where each pushes its own gradients. requests: for shared units of work.
    """

    def __init__(
        self, context: Context, strategy: ParameterServer, links: Links, node_team: Team | None = None,
        requests: UnitRequests | None = None,
    ) -> None:  # fmt: skip
        shapes, tables = context.model.shapes(), sparse_tables(context.scenario)
        self.layout = lay_out(shapes, strategy, tables, pulled=True)
        # of final parameters
        self.whole_layout = lay_out(shapes, strategy, tables)
        self._tables = {self.layout.names[table.number]: table for table in tables}
        # by number of a table its pulled rows
        self.pulled: dict[int, PulledTable] = {}
        self.values = torch.empty(sum(self.layout.sizes), dtype=context.dtype, device=context.device)
        self.gradient = torch.zeros_like(self.values)
        both = zip(self.layout.views(self.values), self.layout.views(self.gradient), strict=True)
        self._views = dict(zip(self.layout.names, both, strict=True))
        super().__init__(context, context.rank)
        self.requests = requests
        self.strategy, self.links = strategy, links
        self.node_collectives = Collectives(self.recorder, node_team) if node_team else None
        self.leads = node_team is None or node_team.place == 0
        # by bucket and server, where only rows of tables are sent
        self.formats = {
            (number, server): RowMessages.of(context.scenario, self.layout, number, server)
            for number, bucket in enumerate(self.layout.buckets)
            for server in bucket.parts
        }
        # by step the rows that its samples touch
        self.touched = [
            {number: rows.to(context.device) for number, rows in own.items()}
            for own in touched_rows(context.scenario, self.batches)
        ]
        self._pull_first_rows()
        self.size_bytes = sum(self.bucket_bytes(bucket) for bucket in range(len(self.layout.buckets)))

    def reduce(self, number: int, layer: nn.Module) -> None:
        """Replaces the tables of a layer by rows."""
        for name, parameter in list(layer.named_parameters()):
            if (number, name) in self._tables:
                table, (owner, _, attribute) = self._tables[number, name], name.rpartition(".")
                shape = (-1, table.width) if parameter.dim() > 1 else (-1,)
                rows = self.pulled[table.number] = PulledTable(parameter.new_zeros(table.touched * table.width).view(shape))
                layer.get_submodule(owner).register_parameter(attribute, rows)

    def _pull_first_rows(self) -> None:
        """Receives the parts of the initial parameters that have tables, with the rows of the first step."""
        for server in range(self.strategy.workers, self.strategy.ranks):
            for number in reversed(range(len(self.layout.buckets))):
                part = self.layout.buckets[number].parts.get(server - self.strategy.workers)
                rows = None if part is None else self._rows_of(number, server)
                if part is not None and rows is not None:
                    wait_all([self.links.send(rows.request(self.touched[0]), server)])
                    wait_all([self.links.receive(self.values[part], server)])

    def take(self, index: int) -> None:
        """Takes step number `index` with the rows that its samples touch."""
        for number, table in self.pulled.items():
            table.rows = self.touched[index][number]
        super().take(index)

    def prepare(self, number: int, layer: nn.Module) -> None:
        """Moves a layer's parameters into the vector before the next layer is built."""
        for name, parameter in layer.named_parameters():
            if (number, name) in self._views:
                value, slope = self._views[number, name]
                value.copy_(parameter.detach().flatten())
                parameter.data, parameter.grad = value.view_as(parameter), slope.view_as(parameter)

    def steps(self) -> Iterator[int]:
        """The numbers of the worker's steps; units of work begin after the warm-up of all ranks."""
        warmup, total = warmup_steps(self.context.scenario), steps_of_worker(self.context.scenario, self.context.rank)
        yield from range(warmup)
        if self.strategy.units is not None:
            self.context.begin_run()
        for index in range(warmup, total):
            if self.requests is not None:
                # a unit belongs to the worker whose device is ready for it, not to the one whose host is
                self.await_device()
                if not self.requests.take():
                    return
            yield index
        if self.requests is not None:
            # servers wait for requests until one is refused, also where this worker has taken all units
            self.requests.take()

    def step(self, index: int) -> None:
        """Generates samples, and trains on a batch."""
        self.act()
        super().step(index)

    def act(self) -> None:
        """Generates the step's samples in an emulated environment, which takes `rollout_s`."""
        if self.strategy.rollout_s:
            with self.recorder.span(Phase.INPUT):
                # samples are generated with the parameters that were pulled
                self.await_device()
                time.sleep(self.strategy.rollout_s)

    def await_device(self) -> None:
        """Waits until the worker's device has done all that it was given."""
        if self.values.is_cuda:
            torch.cuda.current_stream().synchronize()

    def update(self) -> None:
        """Pushes the gradients and pulls the parameters. `record.assemble` splits the wait from the pull by servers' spans."""
        self._in_node(dist.reduce, self.gradient)
        if self.leads:
            with self.recorder.span(Phase.SEND, size_bytes=self.size_bytes, group=0, match=self._index):
                wait_all(self.push(0))
            with self.recorder.span(Phase.WAIT, size_bytes=self.size_bytes, group=0, match=self._index):
                pulls = self.pull(0)
                # the next backward pass adds to it
                self.gradient.zero_()
                wait_all(pulls)
        self._in_node(dist.broadcast, self.values)
        if not self.leads:
            self.gradient.zero_()

    def push(self, bucket: int) -> list[dist.Work]:
        """Starts to send the gradients of a bucket to all servers that have a part of it."""
        return [self.links.send(self._push(bucket, server, part), server) for server, part in self._parts(bucket)]

    def _push(self, bucket: int, server: int, part: slice) -> Tensor:
        """The message of a push of a bucket to a server."""
        gradient, rows = self.gradient[part], self._rows_of(bucket, server)
        return gradient if rows is None else rows.push(gradient, self.touched[self._index], self._next_rows())

    def pull(self, bucket: int) -> list[dist.Work]:
        """Starts to receive the parameters of a bucket."""
        return [self.links.receive(self.values[part], server) for server, part in self._parts(bucket)]

    def _rows_of(self, bucket: int, server: int) -> RowMessages | None:
        """The format of messages with a server's part of a bucket, if only rows of its tables are sent."""
        return self.formats[bucket, server - self.strategy.workers]

    def _next_rows(self) -> Rows:
        """The rows that the samples of the worker's next step touch; after the last step, those of this one."""
        return self.touched[min(self._index + 1, len(self.touched) - 1)]

    def bucket_bytes(self, bucket: int) -> float:
        """Bytes of a push of a bucket to all servers."""
        elements = 0
        for server, part in self._parts(bucket):
            size, rows = part.stop - part.start, self._rows_of(bucket, server)
            elements += size if rows is None else size + rows.number_elements(self.values.dtype)
        return float(elements * self.values.element_size())

    def complete(self) -> None:
        """Receives the servers' final parameters. Without synchronous steps others may have pushed since this worker's last
        pull, which had some rows only where gradients are sparse, and fewer digits in fp16."""
        if has_final_parameters(self.context, self.strategy):
            return
        layout = self.whole_layout
        values = torch.empty(sum(layout.sizes), dtype=self.context.updated_dtype, device=self.context.device)
        for bucket in layout.buckets:
            for server, part in bucket.parts.items():
                dist.recv(values[part], self.strategy.workers + server)
        parameters, views = list(self.module.parameters()), layout.views(values)
        for number, table in self.pulled.items():
            # of whole tables
            table.data = views[number].view(-1, *table.shape[1:])
        replace_values(parameters, views)

    def _parts(self, bucket: int) -> Iterable[tuple[int, slice]]:
        """The rank of each server that has a part of the bucket, and that part of the vector."""
        return ((self.strategy.workers + server, part) for server, part in self.layout.buckets[bucket].parts.items())

    def _in_node(self, collective: Callable[..., Any], tensor: Tensor) -> None:
        """Reduces gradients to the node's first worker, or broadcasts parameters from it."""
        if self.node_collectives is not None:
            team = self.node_collectives.team
            with self.recorder.span(Phase.SYNCHRONISE), self.node_collectives.noted(tensor):
                collective(tensor, team.ranks[0], group=team.group)


class OverlappedWorker(Worker):
    """Pushes a bucket once its gradients are complete, and waits for its pull before the layers that need it."""

    def __init__(
        self, context: Context, strategy: ParameterServer, links: Links, node_team: Team | None = None,
        requests: UnitRequests | None = None,
    ) -> None:  # fmt: skip
        super().__init__(context, strategy, links, node_team, requests)
        buckets, parameters = self.layout.buckets, list(self.module.parameters())
        # number of tensors of each bucket without a gradient yet; the next bucket to push; pushes under way; by bucket the step
        # and pulls under way
        self.gradients_left: list[int] = []
        self.next_push = -1
        self.pushes: list[dist.Work] = []
        self.pulls: dict[int, tuple[int, list[dist.Work]]] = {}
        self.hooks: list[Any] = [
            parameters[tensor].register_post_accumulate_grad_hook(partial(self._on_gradient, number))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(buckets)
            for tensor in bucket.tensors
        ]
        ends = [*(bucket.layer for bucket in buckets[1:]), len(self.layers)]
        # the layers that can run forward once each bucket has been pulled
        pieces = [range(bucket.layer, end) for bucket, end in zip(buckets, ends, strict=True)]
        self.pieces = [
            context.model.graph({number: self.layers[number] for number in piece}) if piece else None for piece in pieces
        ]

    def steps(self) -> Iterator[int]:
        """The numbers of the worker's steps; after the last one it waits for all parameters."""
        yield from super().steps()
        for _, pulls in self.pulls.values():
            wait_all(pulls)

    def step(self, index: int) -> None:
        """Trains on a batch; pushes and pulls overlap with the passes."""
        self.gradients_left = [len(bucket.tensors) for bucket in self.layout.buckets]
        self.next_push = len(self.gradients_left) - 1
        self.backward(self.forward(self.batches[index]))
        self.end_pushes()
        self.await_pull(0)
        if index == steps_of_worker(self.context.scenario, self.context.rank) - 1:
            self._await_all_pulls()

    def forward(self, batch: Batch) -> Tensor:
        """The loss of the worker's samples; each bucket's layers wait for their parameters."""
        if self.strategy.rollout_s:
            # samples are generated with all parameters
            self._await_all_pulls()
            self.act()
        x: Values = batch.inputs
        tensors = {data_name(Wire(DATA)): batch.inputs, **batch.others}
        for bucket, piece in enumerate(self.pieces):
            self.await_pull(bucket)
            if piece is not None:
                with self.recorder.span(Phase.FORWARD):
                    x = piece(*as_tuple(x), **tensors)
        with self.recorder.span(Phase.FORWARD):
            loss = self.context.model.loss(x, batch.targets)
        self.note_loss(loss, len(batch.targets))
        return loss

    def close(self) -> None:
        """Removes the hooks of parameters."""
        for hook in self.hooks:
            hook.remove()

    def _on_gradient(self, bucket: int, _: Tensor) -> None:
        """Called when a gradient of the bucket is computed. Its last one starts the push and the pull, unless the gradients of
        a later bucket are missing: servers expect buckets from the last to the first."""
        self.gradients_left[bucket] -= 1
        while self.next_push >= 0 and self.gradients_left[self.next_push] == 0:
            self.exchange(self.next_push)
            self.next_push -= 1

    def exchange(self, bucket: int) -> None:
        """Starts to push the gradients of a bucket, and to pull its parameters."""
        self.pulls[bucket] = self._index, self.send(bucket, self._index)

    def send(self, bucket: int, index: int) -> list[dist.Work]:
        """Starts to push the gradients of a bucket in step `index`; returns its pulls, which have begun."""
        begin = self.recorder.now()
        self.pushes += self.push(bucket)
        pulls = self.pull(bucket)
        self.recorder.add(Phase.SEND, begin, begin, stream=Stream.COMMUNICATION, **self.labels(bucket, index))
        return pulls

    def end_pushes(self) -> None:
        """Waits until all pushes of a step have been sent."""
        with self.recorder.span(Phase.SEND, size_bytes=self.size_bytes):
            wait_all(self.pushes)
            self.pushes.clear()

    def await_pull(self, bucket: int) -> None:
        """Waits for the parameters of a bucket, unless they have come already."""
        if bucket not in self.pulls:
            return
        index, pulls = self.pulls.pop(bucket)
        with self.recorder.span(Phase.WAIT, **self.labels(bucket, index)):
            self.clear_gradient(bucket)
            wait_all(pulls)

    def clear_gradient(self, bucket: int) -> None:
        """Clears the gradients once the first bucket is waited for: the next backward pass adds to them."""
        if bucket == 0:
            self.gradient.zero_()

    def labels(self, bucket: int, index: int) -> dict[str, Any]:
        """Labels of the spans of a bucket's push and pull in step `index`."""
        return {"size_bytes": self.bucket_bytes(bucket), "group": bucket, "match": index}

    def _await_all_pulls(self) -> None:
        for bucket in range(len(self.pieces)):
            self.await_pull(bucket)
