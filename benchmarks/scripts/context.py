"""A Llama whose sequences are divided over ranks by PyTorch's `context_parallel`; FSDP2 shards it over all ranks."""

from __future__ import annotations

import argparse
import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional
from torchtitan_llama import Llama

_STEPS = 3


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    sizes = {"layers": 8, "width": 2048, "heads": 16, "hidden": 8192, "vocabulary": 32000, "length": 16384, "context": 4}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    replicas = dist.get_world_size() // options.context
    mesh = init_device_mesh("cuda", (replicas, options.context), mesh_dim_names=("dp_shard", "cp"))
    with torch.device("meta"):
        model = Llama(argparse.Namespace(**vars(options), key_heads=options.heads))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard = functools.partial(fully_shard, mesh=mesh["dp_shard", "cp"]._flatten("dp_shard_cp"), mp_policy=policy)
    for layer in model.layers:
        shard(layer)
    shard(model)
    model.to_empty(device=device)
    model.init_weights(options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for _ in range(_STEPS + 2):
        tokens = torch.randint(options.vocabulary, (1, options.length + 1), device=device)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        optimizer.zero_grad()
        buffers = [inputs, targets, model.angles]
        with context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[1, 1, 0], no_restore_buffers={inputs, targets}):
            scores = model(inputs)
            functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten()).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
