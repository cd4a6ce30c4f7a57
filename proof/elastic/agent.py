"""Agent of a host: torchrun in the host's network namespace, which logs its phases."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.proof.elastic.records import EventLog
from scaleproof.proof.elastic.trainer import enter_host
from scaleproof.validator.launch.child import end_with, line

# Metrics of torchrun that are logged, and the names of the events.
_EVENTS: Final = {
    "workers.default.failed": "noticed",
    "LocalElasticAgent._stop_workers.success": "stopped",
    "SimpleElasticAgent._rendezvous.success": "met",
    "LocalElasticAgent._start_workers.success": "started",
}


def main(control: int, launcher: int, namespace: str, folder: str, host: int, arguments: Sequence[str]) -> None:
    """Runs torchrun in the network namespace when its launcher says so.

    control: socket to the launcher, whose process id is `launcher`. arguments: of torchrun.
    """
    end_with(launcher)
    enter_host(namespace)
    # give each round its own port: in a shared store, torch identifies rounds by the number of restarts, which differs between
    # hosts where ranks failed and hosts that were notified
    os.environ |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    from torch.distributed.elastic.metrics.api import MetricHandler, configure
    from torch.distributed.run import main as torchrun

    log = EventLog(Path(folder), host, "agent")

    class Handler(MetricHandler):
        def emit(self, metric_data: Any) -> None:
            if (what := _EVENTS.get(metric_data.name)) is not None:
                log.note(what)

    configure(Handler())
    with socket.socket(fileno=control) as connection:
        connection.sendall(line("ready"))
        if connection.recv(1):
            log.note("requests")
            trainer = ["-m", "scaleproof.proof.elastic.trainer", folder, str(host), str(os.getpid())]
            torchrun([*arguments, *trainer])
