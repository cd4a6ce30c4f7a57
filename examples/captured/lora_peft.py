"""LoRA of a frozen Llama of Hugging Face transformers by PEFT, with data parallelism: bf16 weights, and adapters in fp32."""

import argparse
import os

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
sizes = {"layers": 16, "width": 2048, "heads": 32, "kv-heads": 8, "hidden": 8192, "vocabulary": 32000, "length": 2048}
for name, value in (sizes | {"batch": 4, "rank": 16}).items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
config = LlamaConfig(
    hidden_size=options.width,
    num_hidden_layers=options.layers,
    intermediate_size=options.hidden,
    num_attention_heads=options.heads,
    num_key_value_heads=options.kv_heads,
    vocab_size=options.vocabulary,
    max_position_embeddings=options.length,
    use_cache=False,
)
with device:
    base = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
adapted = get_peft_model(base, LoraConfig(r=options.rank, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
model = DistributedDataParallel(adapted, device_ids=[device.index])
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=2e-4, fused=True)
for _ in range(6):
    tokens = torch.randint(options.vocabulary, (options.batch, options.length), device=device)
    with torch.autocast("cuda", torch.bfloat16):
        outputs = model(input_ids=tokens, labels=tokens)
    outputs.loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
