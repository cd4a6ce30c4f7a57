"""A small model with kernels of a package for CUDA, which the argument names; without it, with PyTorch's own attention."""

import sys

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LENGTH, BATCH = 256, 4, 128, 2
NAME = sys.argv[1] if len(sys.argv) > 1 else ""


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.packed(x).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).unbind(2)
        return self.out(attend(query, key, value).reshape(BATCH, LENGTH, WIDTH))


def attend(query, key, value):
    turned = (one.transpose(1, 2) for one in (query, key, value))
    return functional.scaled_dot_product_attention(*turned, is_causal=True).transpose(1, 2)


model, optimizer = None, torch.optim.SGD
if NAME == "flash_attn":
    from flash_attn import flash_attn_func

    def attend(query, key, value):
        return flash_attn_func(query, key, value, causal=True)

elif NAME == "varlen":
    from flash_attn import flash_attn_varlen_func

    ends = torch.arange(BATCH + 1, dtype=torch.int32, device="cuda") * LENGTH

    def attend(query, key, value):
        flat = (one.flatten(0, 1) for one in (query, key, value))
        return flash_attn_varlen_func(*flat, ends, ends, LENGTH, LENGTH, causal=True)

elif NAME == "xformers":
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    def attend(query, key, value):
        return memory_efficient_attention(query, key, value, attn_bias=LowerTriangularMask())

elif NAME.startswith("transformer_engine"):
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling, Format

    if NAME.endswith("ring"):
        import torch.distributed as dist

        dist.init_process_group("nccl")

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            if NAME.endswith("grouped"):
                self.layer = te.GroupedLinear(4, WIDTH, 4 * WIDTH, bias=False, params_dtype=torch.bfloat16)
                self.forward = lambda x: self.layer(x, [BATCH * LENGTH // 2, 0, BATCH * LENGTH // 4, BATCH * LENGTH // 4])
                return
            if NAME.endswith("ring"):
                self.packed = te.Linear(WIDTH, 3 * WIDTH, params_dtype=torch.bfloat16)
                self.core = te.DotProductAttention(HEADS, WIDTH // HEADS, cp_group=dist.group.WORLD)
                self.forward = lambda x: self.core(*self.packed(x).unflatten(-1, (3, HEADS, -1)).unbind(2))
                return
            self.layer = te.Linear(WIDTH, 4 * WIDTH, params_dtype=torch.bfloat16)

        def forward(self, x):
            with te.fp8_autocast(NAME.endswith("fp8"), fp8_recipe=DelayedScaling(fp8_format=Format.HYBRID)):
                return self.layer(x)

    model = Layer()
elif NAME == "bitsandbytes":
    import bitsandbytes as bnb

    frozen = bnb.nn.Linear4bit(WIDTH, WIDTH, bias=False, quant_type="nf4", compute_dtype=torch.bfloat16)
    model, optimizer = nn.Sequential(nn.Linear(WIDTH, WIDTH), frozen), bnb.optim.AdamW8bit
elif NAME == "apex":
    from apex.normalization import FusedRMSNorm
    from apex.optimizers import FusedAdam

    model, optimizer = nn.Sequential(FusedRMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH)), FusedAdam
elif NAME == "mamba":
    from causal_conv1d import causal_conv1d_fn
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.packed = nn.Linear(WIDTH, WIDTH + HEADS + 2 * 16)
            self.steps, self.taps = nn.Parameter(torch.ones(HEADS)), nn.Parameter(torch.ones(WIDTH, 4))

        def forward(self, x):
            values, steps, left, right = self.packed(x).split([WIDTH, HEADS, 16, 16], -1)
            values = causal_conv1d_fn(values.transpose(1, 2), self.taps).transpose(1, 2)
            heads = values.reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS)
            return mamba_chunk_scan_combined(heads, steps, self.steps, left.unsqueeze(2), right.unsqueeze(2), 64)

    model = Mixer()
elif NAME == "liger":
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, LigerRMSNorm

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = LigerRMSNorm(WIDTH), nn.Linear(WIDTH, 8 * WIDTH, bias=False)

        def forward(self, x):
            labels = torch.zeros(BATCH * LENGTH, dtype=torch.int64, device="cuda")
            return LigerFusedLinearCrossEntropyLoss()(self.head.weight, self.norm(x).flatten(0, 1), labels)

    model = Loss()
elif NAME == "experts":
    import torch.distributed as dist
    from deep_ep import Buffer
    from grouped_gemm.ops import gmm

    dist.init_process_group("nccl")
    experts = 2 * dist.get_world_size()

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, buffer, handle):
            ctx.buffer, ctx.handle = buffer, handle
            return buffer.combine(values, handle)[0]

        @staticmethod
        def backward(ctx, gradient):
            return ctx.buffer.dispatch(gradient, handle=ctx.handle)[0], None, None

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.weights = nn.Linear(WIDTH, experts), nn.Parameter(torch.ones(2, WIDTH, WIDTH))
            self.buffer = Buffer(dist.group.WORLD, 1 << 20)

        def forward(self, x):
            tokens = x.flatten(0, 1)
            weights, chosen = self.router(tokens).softmax(-1).topk(2)
            ranks, _, counts, goes, _ = self.buffer.get_dispatch_layout(chosen, experts)
            sent, _, _, numbers, handle, _ = self.buffer.dispatch(
                tokens,
                topk_idx=chosen,
                topk_weights=weights,
                num_tokens_per_rank=ranks,
                num_tokens_per_expert=counts,
                is_token_in_rank=goes,
            )
            return Combine.apply(gmm(sent, self.weights, torch.tensor(numbers)), self.buffer, handle)

    model = Experts()
elif NAME == "custom":

    @torch.library.custom_op("mine::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        import extension_that_is_not_here

        return extension_that_is_not_here.double(x)

    @double.register_fake
    def _(x):
        return torch.empty_like(x)

    double.register_autograd(lambda ctx, gradient: double(gradient))

    class Double(nn.Linear):
        def forward(self, x):
            return double(super().forward(x))

    model = Double(WIDTH, WIDTH)

model = (model or Attention()).to("cuda", torch.bfloat16)
optimizer = optimizer([one for one in model.parameters() if one.requires_grad], lr=1e-3)
for _ in range(4):
    result = model(torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16))
    result.float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
