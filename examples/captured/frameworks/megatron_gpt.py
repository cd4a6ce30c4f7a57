"""A GPT of Megatron Core, as its documentation trains one: tensor, sequence and pipeline parallelism, distributed optimizer."""

import argparse
import os
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--sequence-parallel", action="store_true")
parser.add_argument("--transformer-engine", action="store_true")
parser.add_argument("--fp8", help="format of products in 8 bits, such as hybrid")
sizes = {"layers": 4, "width": 512, "vocabulary": 8192, "length": 512, "batch": 2, "micro-batches": 4, "steps": 6}
for name, value in (sizes | {"tensor": 2, "pipeline": 2, "context": 1, "expert-ranks": 1, "experts": 0}).items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parallel_state.initialize_model_parallel(
    options.tensor, options.pipeline, context_parallel_size=options.context,
    expert_model_parallel_size=options.expert_ranks, expert_tensor_parallel_size=1 if options.experts else None,
)  # fmt: skip
model_parallel_cuda_manual_seed(123)
init_num_microbatches_calculator(
    dist.get_rank(), None, options.micro_batches * options.batch * parallel_state.get_data_parallel_world_size(),
    options.batch, parallel_state.get_data_parallel_world_size(),
)  # fmt: skip
mixture = {"num_moe_experts": options.experts, "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall",
           "moe_router_topk": 2, "expert_model_parallel_size": options.expert_ranks, "expert_tensor_parallel_size": 1,
           "add_bias_linear": False} if options.experts else {}  # fmt: skip
config = TransformerConfig(
    num_layers=options.layers, hidden_size=options.width, num_attention_heads=options.width // 64, bf16=True,
    pipeline_dtype=torch.bfloat16, params_dtype=torch.bfloat16, sequence_parallel=options.sequence_parallel,
    tensor_model_parallel_size=options.tensor, pipeline_model_parallel_size=options.pipeline,
    context_parallel_size=options.context, hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
    fp8=options.fp8, **mixture,
)  # fmt: skip
experts = {"num_experts": options.experts, "moe_grouped_gemm": True} if options.experts else {}
layer = (
    get_gpt_layer_with_transformer_engine_spec(**experts) if options.transformer_engine else get_gpt_layer_local_spec(**experts)
)
model = GPTModel(
    config, layer, options.vocabulary, options.length, position_embedding_type="rope",
    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
).cuda()  # fmt: skip
settings = DistributedDataParallelConfig(
    grad_reduce_in_fp32=True, overlap_grad_reduce=True, use_distributed_optimizer=True, overlap_param_gather=True
)
model = DistributedDataParallel(config, settings, Float16Module(config, model))
optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-4, bf16=True, use_distributed_optimizer=True, clip_grad=1.0), [model])
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss


def batches() -> Iterator[torch.Tensor]:
    while True:
        yield torch.randint(options.vocabulary, (options.batch, options.length // options.context + 1), device="cuda")


def mean(outputs: torch.Tensor) -> tuple[torch.Tensor, dict]:
    loss = outputs.float().mean()
    return loss, {"loss": loss.detach()}


def forward(data: Iterator[torch.Tensor], model: torch.nn.Module) -> tuple[torch.Tensor, partial]:
    tokens = next(data)
    # with context parallelism, ranks have parts of the sequence
    length = tokens.shape[1] - 1
    positions = torch.arange(length, device="cuda").expand(options.batch, -1)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device="cuda").triu(1)
    return model(tokens[:, :-1].contiguous(), positions, mask, labels=tokens[:, 1:].contiguous()), mean


data = batches()
for _ in range(options.steps):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward, data_iterator=data, model=model, num_microbatches=options.micro_batches,
        seq_length=options.length, micro_batch_size=options.batch, forward_only=False,
    )  # fmt: skip
    optimizer.step()
