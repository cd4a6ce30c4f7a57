"""Fixtures that many tests use."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

# processes that a shell starts in the background ignore Ctrl-C, and so do all that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
# example times depend on the machine's load
settings.register_profile("few", deadline=None, max_examples=25)
settings.register_profile("many", deadline=None, max_examples=300)
settings.load_profile("few")

SMALL = """\
model: {kind: gpt, layers: 6, hidden: 64, heads: 4, vocabulary: 256, sequence: 32}
cluster:
  nodes: 8
  node: {devices: 4, link: {bandwidth: 10 GB/s, latency: 5 us}}
  network: {bandwidth: 10 Gbit/s, latency: 20 us}
  device: {name: small, peak: {fp32: 1 TFLOP/s}, memory: 8 GiB, memory_bandwidth: 100 GB/s}
strategy: {kind: data_parallel, workers: 4}
batch: 48
"""


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Scenario]:
    """A small scenario on eight nodes of four devices, with overrides such as `strategy={kind: pipeline, stages: 2}`."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)

    def scenario(*overrides: str) -> Scenario:
        return load(path, overrides)

    return scenario
