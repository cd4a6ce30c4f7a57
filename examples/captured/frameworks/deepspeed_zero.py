"""A language model that DeepSpeed trains, as its documentation shows: ZeRO of any stage, with or without offloading."""

import argparse

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--offload", action="store_true")
for name, value in {"layers": 4, "width": 512, "vocabulary": 8000, "length": 512, "batch": 2, "steps": 6}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": options.batch,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": options.stage, "overlap_comm": True, "contiguous_gradients": True},
}
if options.offload:
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
sizes = GPT2Config(
    n_layer=options.layers, n_embd=options.width, n_head=options.width // 64, vocab_size=options.vocabulary,
    n_positions=options.length, use_cache=False,
)  # fmt: skip
deepspeed.init_distributed()
with deepspeed.zero.Init(config_dict_or_path=config, enabled=options.stage == 3):
    model = GPT2LMHeadModel(sizes)
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(options.steps):
    tokens = torch.randint(options.vocabulary, (options.batch, options.length), device=engine.device)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
