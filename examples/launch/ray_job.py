"""Starts one rank per Ray worker: RANKS=8 GPUS=1 python ray_job.py SCENARIO...

Ray places the ranks; rank 0's host and a free port are where they meet. Files must be readable on all nodes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence


def command(scenarios: Sequence[str]) -> list[str]:
    """The command of every rank."""
    return [
        sys.executable,
        "-m",
        "scaleproof",
        "measure",
        *scenarios,
        "--on",
        "cluster",
        "--out",
        os.environ.get("OUT", "results"),
    ]


def environments(hosts: Sequence[str], address: str, port: int) -> list[dict[str, str]]:
    """The variables of each rank, in rank order. hosts: of each rank."""
    on_host, seen = Counter(hosts), Counter[str]()
    result = []
    for rank, host in enumerate(hosts):
        local = {"LOCAL_RANK": str(seen[host]), "LOCAL_WORLD_SIZE": str(on_host[host])}
        whole = {"RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        result.append(whole | local)
        seen[host] += 1
    return result


class Rank:
    """A rank in a process that Ray has placed."""

    def place(self) -> tuple[str, str, int]:
        """The host's name and address, and a free port."""
        with socket.socket() as free:
            free.bind(("", 0))
            return socket.gethostname(), socket.gethostbyname(socket.gethostname()), free.getsockname()[1]

    def run(self, words: Sequence[str], environment: dict[str, str]) -> int:
        """The exit code of the rank's command."""
        return subprocess.run(words, env=os.environ | environment, check=False).returncode


def main(scenarios: Sequence[str]) -> int:
    """Runs all ranks; returns the largest exit code."""
    import ray

    ray.init()
    worker = ray.remote(num_cpus=1, num_gpus=float(os.environ.get("GPUS", "0")))(Rank)
    ranks = [worker.remote() for _ in range(int(os.environ.get("RANKS", "4")))]
    places = ray.get([rank.place.remote() for rank in ranks])
    variables = environments([host for host, _, _ in places], *places[0][1:])
    return int(max(ray.get([rank.run.remote(command(scenarios), own) for rank, own in zip(ranks, variables, strict=True)])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
