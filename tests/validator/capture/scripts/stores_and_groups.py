"""Stores whose values other ranks set, barriers over them, groups with options of NCCL, and objects."""

import os
from datetime import timedelta

os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]) // 2, 2), mesh_dim_names=("data", "tensor"))
rank, ranks = dist.get_rank(), dist.get_world_size()
store = dist.TCPStore("127.0.0.1", 29511, ranks, rank == 0, timedelta(seconds=30))
assert (store.host, store.port) == ("127.0.0.1", 29511)
assert dist.TCPStore(host_name="127.0.0.1", port=0, is_master=True).port > 0
if rank == 0:
    store.set("run", "first")
store.wait(["run"], timedelta(seconds=20))
assert store.get("run") == b"first"
store.set(f"of-{rank}", "equal")
assert {store.get(f"of-{other}") for other in range(ranks)} == {b"equal"}
store.add("ready", 1)
while int(store.get("ready")) < ranks:
    pass
dist.FileStore("/nowhere/store", ranks).wait(["any"])
dist.monitored_barrier(timeout=timedelta(seconds=5), wait_all_ranks=True)
dist.barrier(device_ids=[0])

options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config.cga_cluster_size = 2
pair = dist.new_group([0, ranks - 1], pg_options=options, use_local_synchronization=True)
on_host = dist.new_group(backend="gloo")
assert (dist.get_backend(on_host), dist.get_backend()) == ("gloo", "nccl")
half = dist.split_group(split_ranks=[list(range(ranks // 2)), list(range(ranks // 2, ranks))], pg_options=options)
assert dist.get_world_size(half) == ranks // 2
assert isinstance(dist.group.WORLD._get_backend(torch.device("cuda")), dist.ProcessGroupNCCL)

gathered = [None] * ranks
dist.all_gather_object(object_list=gathered, obj={"rank": rank})
assert len([one for one in gathered if one is not None]) == ranks
sent = ["of the first"] if rank == 0 else [None]
dist.broadcast_object_list(object_list=sent, src=0, device=torch.device("cuda"))
assert sent == ["of the first"]
part = [None]
dist.scatter_object_list(part, list(range(ranks)) if rank == 0 else None, src=0)
assert part == [rank]
length = torch.tensor([7 if rank == 0 else 0], device="cuda")
dist.broadcast(length, 0)
assert length.item() == 7
found = torch.tensor([False], device="cuda")
dist.all_reduce(found)
assert not found.item()

model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).cuda(), process_group=pair if rank in (0, ranks - 1) else half)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.randn(8, 256, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
