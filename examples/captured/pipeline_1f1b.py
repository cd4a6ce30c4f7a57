"""Four stages of a pipeline with the 1F1B schedule of torch.distributed.pipelining, and replicas of the pipeline (DDP)."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

# sizes may be given as arguments
WIDTH, VOCABULARY, LENGTH, BATCH, STAGES = map(int, sys.argv[1:] or (2048, 32000, 1024, 8, 4))


class Block(nn.Module):
    """A norm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what the layers compute."""
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of a microbatch."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def main() -> None:
    """Trains."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size() // STAGES, STAGES), mesh_dim_names=("dp", "pp"))
    place = mesh["pp"].get_local_rank()
    modules: list[nn.Module] = [Block() for _ in range(4)]
    if place == 0:
        modules.insert(0, nn.Embedding(VOCABULARY, WIDTH))
    if place == STAGES - 1:
        modules += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)]
    module = nn.Sequential(*modules).to(device)
    stage = PipelineStage(module, place, STAGES, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, n_microbatches=BATCH, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4)
    for _ in range(5):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
        if place == 0:
            schedule.step(tokens)
        elif place == STAGES - 1:
            schedule.step(target=tokens)
        else:
            schedule.step()
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
