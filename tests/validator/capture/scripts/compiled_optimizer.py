"""Compiled steps of two optimizers, in which ranks divide the work and wait for futures of collectives."""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, ROWS, BATCH = 256, 4, 1024, 32


@torch.compile
def orthogonal(gradient: torch.Tensor, steps: int) -> torch.Tensor:
    """A matrix near the closest one with orthogonal rows, by an iteration of Newton and Schulz."""
    x = gradient.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Each rank orthogonalises every n-th matrix, whose gradient it alone gets."""

    def __init__(self, parameters: list[nn.Parameter], lr: float = 0.02, momentum: float = 0.95, steps: int = 5) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "steps": steps})

    @torch.compile
    @torch.no_grad()
    def step(self) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        scattered, gathered = [], []
        for group in self.param_groups:
            for first in range(0, len(group["params"]), ranks):
                several = group["params"][first : first + ranks]
                gradients = [one.grad for one in several]
                work = dist.reduce_scatter(several[rank].grad, gradients, op=dist.ReduceOp.AVG, async_op=True)
                scattered.append(work.get_future())
        index = 0
        for group in self.param_groups:
            for first in range(0, len(group["params"]), ranks):
                scattered[index].wait()
                index += 1
                several = [one.detach() for one in group["params"][first : first + ranks]]
                own, gradient, state = (
                    several[rank],
                    group["params"][first + rank].grad,
                    self.state[group["params"][first + rank]],
                )
                if not state:
                    state["momentum"] = torch.zeros_like(gradient)
                state["momentum"].lerp_(gradient, 1 - group["momentum"])
                change = orthogonal(gradient.lerp_(state["momentum"], group["momentum"]), group["steps"])
                own.mul_(1 - group["lr"] * 0.1).add_(change, alpha=-group["lr"])
                gathered.append(dist.all_gather(several, own, async_op=True).get_future())
        torch.futures.collect_all(gathered).wait()


class ShardedAdam(torch.optim.Optimizer):
    """Each rank updates a part of each parameter."""

    def __init__(self, parameters: list[nn.Parameter], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8})

    @torch.compile
    @torch.no_grad()
    def step(self) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        scattered, parts, gathered = [], [], []
        for group in self.param_groups:
            for parameter in group["params"]:
                part = torch.empty_like(parameter.grad[: len(parameter) // ranks])
                work = dist.reduce_scatter_tensor(part, parameter.grad, op=dist.ReduceOp.AVG, async_op=True)
                scattered.append(work.get_future())
                parts.append(part)
        index = 0
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                scattered[index].wait()
                rows = len(parameter) // ranks
                whole = parameter.detach()
                own, gradient, state = whole[rank * rows : (rank + 1) * rows], parts[index], self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0, dtype=torch.int64, device="cuda")
                    state["first"], state["second"] = torch.zeros_like(own), torch.zeros_like(own)
                first, second, step = state["first"], state["second"], state["step"]
                step += 1
                first.mul_(beta1).add_(gradient, alpha=1 - beta1)
                second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                scale = (1 - beta2**step).sqrt() / (1 - beta1**step)
                own.add_(first.div(second.sqrt().add_(group["eps"])).mul_(group["lr"] * scale), alpha=-1.0)
                index += 1
                gathered.append(dist.all_gather_into_tensor(whole, own, async_op=True).get_future())
        torch.futures.collect_all(gathered).wait()


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
embedding = nn.Embedding(ROWS, WIDTH).cuda()
hidden = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).cuda()
model = torch.compile(nn.Sequential(embedding, hidden))
optimizers = [ShardedAdam(list(embedding.parameters())), Muon(list(hidden.parameters()))]
for _ in range(4):
    model(torch.randint(ROWS, (BATCH,), device="cuda")).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
