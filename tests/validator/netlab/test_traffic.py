"""Background traffic takes its share of a host's link, in both directions, and ends with its context."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.netlab.traffic import background_traffic
from tests.validator.netlabs import lab_cluster, needs_netlab

RATE_Bps = 2.5e6
SECONDS = 1.0


def _bytes(lab: Netlab, host: int) -> tuple[int, int]:
    """Bytes received and sent by a host so far."""
    argv = lab.command(host, ["ip", "-json", "-stats", "link", "show", "dev", lab.interface])
    (interface,) = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10).stdout)
    return interface["stats64"]["rx"]["bytes"], interface["stats64"]["tx"]["bytes"]


def _rates_Bps(lab: Netlab, host: int) -> list[float]:
    before, begin_s = _bytes(lab, host), time.monotonic()
    time.sleep(SECONDS)
    after, end_s = _bytes(lab, host), time.monotonic()
    return [(b - a) / (end_s - begin_s) for a, b in zip(before, after, strict=True)]


@needs_netlab
def test_traffic_has_its_rate_in_both_directions_and_ends() -> None:
    with Netlab(lab_cluster(3, "40 Mbit/s")) as lab:
        with background_traffic(lab, 0, 2, RATE_Bps):
            time.sleep(0.3)
            assert _rates_Bps(lab, 0) == pytest.approx([RATE_Bps] * 2, rel=0.15)
            assert max(_rates_Bps(lab, 1)) < 0.01 * RATE_Bps
        assert max(_rates_Bps(lab, 0)) < 0.1 * RATE_Bps
