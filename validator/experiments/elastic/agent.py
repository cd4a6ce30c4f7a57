"""A host's agent: torchrun, told where the hosts meet, that notes when it does what."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.validator.experiments.elastic.records import EventLog
from scaleproof.validator.experiments.elastic.trainer import SETTINGS, end_with

READY: Final = b"ready\n"
# torchrun's metrics that are noted, and what they tell.
_TOLD: Final = {
    "workers.default.failed": "noticed",
    "LocalElasticAgent._stop_workers.success": "stopped",
    "SimpleElasticAgent._rendezvous.success": "met",
    "LocalElasticAgent._start_workers.success": "started",
}


def main(control: int, launcher: int, namespace: str, folder: Path, host: int, arguments: Sequence[str]) -> None:
    """Runs torchrun in the network namespace once its launcher says so.

    control: socket to the launcher, whose process id is `launcher`. arguments: torchrun's own.
    """
    from scaleproof.validator.netlab.namespaces import enter

    end_with(launcher)
    enter(Path(namespace))
    # each round gets a port of its own: in a store that rounds share, torch tells them apart by the number of restarts, which
    # is another on hosts where ranks failed than on those that were told of it
    os.environ |= SETTINGS | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    from torch.distributed.elastic.metrics.api import MetricHandler, configure
    from torch.distributed.run import main as torchrun

    notes = EventLog(folder, host, "agent")

    class Handler(MetricHandler):
        def emit(self, metric_data: Any) -> None:
            if (what := _TOLD.get(metric_data.name)) is not None:
                notes.note(what)

    configure(Handler())
    with socket.socket(fileno=control) as talk:
        talk.sendall(READY)
        if talk.recv(1):
            trainer = ["-m", "scaleproof.validator.experiments.elastic.trainer", str(folder), str(host), str(os.getpid())]
            torchrun([*arguments, *trainer])
