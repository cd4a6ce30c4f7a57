"""Messages of NCCL that wait for their peers leave most of a GPU's processors to kernels that compute."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from scaleproof.validator.capture.communication.nccl import NcclGroup
from scaleproof.validator.strategy.parameter_server.links import _options

PROCESSORS = 132


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 1), (7, 1), (6, 2), (63, 1)])
def test_waiting_messages_take_at_most_a_quarter_of_the_processors(
    workers: int, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "ProcessGroupNCCL", NcclGroup, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=PROCESSORS))
    pairs = [pair for one in product(range(workers), range(workers, workers + servers)) for pair in (one, one[::-1])]

    blocks = _options(pairs).config.max_ctas

    # each rank sends to and receives from all of the other kind
    messages = 2 * max(workers, servers)
    assert blocks >= 1
    assert messages * blocks <= max(messages, PROCESSORS / 4)


def test_gloo_has_no_such_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")

    assert _options([(0, 1), (1, 0)]) is None
