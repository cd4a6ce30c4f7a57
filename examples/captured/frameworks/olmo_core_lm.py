"""A transformer of OLMo-core with its FSDP2 and optimizer, as its train module combines them."""

import argparse

import torch
import torch.distributed as dist
from olmo_core.config import DType
from olmo_core.distributed.parallel import DataParallelConfig, DataParallelType, build_world_mesh, get_dp_model_mesh
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import prepare_training_environment
from torch.nn import functional

parser = argparse.ArgumentParser()
for name, value in {"layers": 4, "width": 512, "vocabulary": 8000, "length": 512, "batch": 2, "steps": 6}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()

prepare_training_environment()
mesh = build_world_mesh(dp=DataParallelConfig(name=DataParallelType.fsdp, param_dtype=DType.bfloat16))
config = TransformerConfig.llama_like(
    d_model=options.width, vocab_size=options.vocabulary, n_layers=options.layers, n_heads=options.width // 64
)
model = config.build(init_device="meta")
model.apply_fsdp(get_dp_model_mesh(mesh), param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model.init_weights(max_seq_len=options.length, device=torch.device("cuda"))
optimizer = AdamWConfig(lr=1e-4).build(model)
for _ in range(options.steps):
    tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1), device="cuda")
    scores = model(tokens[:, :-1])
    functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
