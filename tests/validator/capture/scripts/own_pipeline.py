"""Tensor, pipeline and data parallelism with collectives in autograd functions and batched messages."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

TP, PP, WIDTH, LENGTH, SAMPLES, MICROBATCHES = 2, 2, 128, 64, 2, 4

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, world = dist.get_rank(), dist.get_world_size()
grid = torch.arange(world).view(-1, PP, TP)
dp, stage, part = (grid == rank).nonzero()[0].tolist()
TENSOR = dist.new_subgroups_by_enumeration(grid.view(-1, TP).tolist())[0]
PIPE = dist.new_subgroups_by_enumeration(grid.transpose(1, 2).reshape(-1, PP).tolist())[0]
DATA = dist.new_subgroups_by_enumeration(grid.permute(1, 2, 0).reshape(PP * TP, -1).tolist())[0]


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient, group=TENSOR)
        return gradient


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x, group=TENSOR)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class LinearWithAsyncAllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        grad_input = gradient @ weight
        handle = dist.all_reduce(grad_input, group=TENSOR, async_op=True)
        grad_weight = gradient.flatten(0, 1).t() @ x.flatten(0, 1)
        handle.wait()
        return grad_input, grad_weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH // TP, bias=False), nn.Linear(4 * WIDTH // TP, WIDTH, bias=False)
        self.q = nn.Linear(WIDTH, 3 * WIDTH // TP, bias=False)
        self.o = nn.Linear(WIDTH // TP, WIDTH, bias=False)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x):
        q, k, v = self.q(Copy.apply(self.norm(x))).view(SAMPLES, LENGTH, 3, 4 // TP, -1).permute(2, 0, 3, 1, 4)
        x = x + Reduce.apply(
            self.o(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        )
        return x + Reduce.apply(self.down(functional.silu(LinearWithAsyncAllReduce.apply(self.norm(x), self.up.weight))))


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1024, WIDTH) if stage == 0 else None
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 1024, bias=False) if stage == PP - 1 else None

    def forward(self, x):
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks:
            x = block(x)
        return self.head(x) if self.head is not None else x


before, after = (dist.get_global_rank(PIPE, place) if 0 <= place < PP else None for place in (stage - 1, stage + 1))


def exchange(send_to=None, sent=None, from_=None):
    received = (
        torch.empty(SAMPLES, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        if from_ is not None
        else None
    )
    ops = []
    if send_to is not None:
        ops.append(dist.P2POp(dist.isend, sent, send_to))
    if from_ is not None:
        ops.append(dist.P2POp(dist.irecv, received, from_))
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()
    torch.cuda.synchronize()
    return received


model = Stage().cuda().bfloat16()
masters = {p: torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()}
works = []
last = False


def hook(p):
    masters[p].add_(p.grad)
    p.grad = None
    if last:
        works.append((dist.all_reduce(masters[p], group=DATA, async_op=True), p))


for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def forward(x):
    if stage == 0:
        x = torch.randint(0, 1024, (SAMPLES, LENGTH), device="cuda")
    y = model(x)
    if stage == PP - 1:
        y = functional.cross_entropy(y.flatten(0, 1).float(), torch.randint(0, 1024, (SAMPLES * LENGTH,), device="cuda"))
    return y


def backward(x, y, gradient):
    torch.autograd.backward(y, grad_tensors=gradient)
    return x.grad if x is not None else None


for step in range(4):
    last = False
    warm = min(PP - stage - 1, MICROBATCHES)
    kept = []
    for _ in range(warm):
        x = exchange(from_=before)
        y = forward(x)
        exchange(after, y)
        kept.append((x, y))
    x = exchange(from_=before) if warm < MICROBATCHES else None
    for turn in range(MICROBATCHES - warm):
        final = turn == MICROBATCHES - warm - 1
        y = forward(x)
        gradient = exchange(after, y, after)
        kept.append((x, y))
        own, result = kept.pop(0)
        last = warm == 0 and final
        grad = backward(own, result, gradient)
        x = exchange(before, grad, None if final else before)
    for turn in range(warm):
        own, result = kept.pop(0)
        gradient = exchange(from_=after)
        last = turn == warm - 1
        exchange(before, backward(own, result, gradient))
    for work, p in works:
        work.wait()
        p.grad = masters[p].to(p.dtype)
    works.clear()
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for one in masters.values():
        one.zero_()
    loss = torch.tensor([y.item() if stage == PP - 1 else 0.0], device="cuda")
    dist.all_reduce(loss, group=PIPE)
    if rank == 0:
        print(step, loss.item())
dist.destroy_process_group()
