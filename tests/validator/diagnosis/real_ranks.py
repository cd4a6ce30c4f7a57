"""Trains on three processes of this machine over gloo, each with torch.profiler.

Run: python real_ranks.py FOLDER LATE_RANK LATE_S
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

WORLD = 3


def train(rank: int, folder: str, late_rank: int, late_s: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4))))
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randn(64, 128)

    def export(profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json.gz")

    activities = [torch.profiler.ProfilerActivity.CPU]
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=6, repeat=1)
    with torch.profiler.profile(
        activities=activities, schedule=schedule, record_shapes=True, on_trace_ready=export
    ) as profiler:
        for _ in range(8):
            if rank == late_rank:
                time.sleep(late_s)
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    spawn(train, (sys.argv[1], int(sys.argv[2]), float(sys.argv[3])), nprocs=WORLD)  # type: ignore[no-untyped-call]
