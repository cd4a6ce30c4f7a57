"""The device mesh of a hybrid's ranks, and their teams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch.distributed.device_mesh import DeviceMesh

from scaleproof.simulator.parallelism.plan import Plan


def build_mesh(plan: Plan, device: str) -> DeviceMesh:
    """The mesh of all training ranks, numbered as in the plan. Servers must call it too."""
    sizes = mesh_sizes(plan)
    return DeviceMesh(device, torch.arange(plan.ranks).view(*sizes.values()), mesh_dim_names=tuple(sizes))


def mesh_sizes(plan: Plan) -> dict[str, int]:
    """Lengths of the mesh's axes, outermost first. Workers form two axes: those that share experts are neighbours, unless
    tensor- and context-parallel ranks share experts too."""
    expert = plan.expert if plan.expert_tensor is None else 1
    axes = {
        "tensor": {"tensor": plan.tensor},
        "context": {"context": plan.context},
        "workers": {"replica": plan.workers // expert, "expert": expert},
        "stages": {"stage": plan.stages},
    }
    return {name: size for axis in reversed(plan.order) for name, size in axes[axis].items()}


def teams(mesh: DeviceMesh, *axes: str) -> Sequence[Sequence[int]]:
    """All teams of ranks that differ only along `axes`."""
    names = mesh.mesh_dim_names or ()
    inside = [names.index(axis) for axis in axes]
    outside = [number for number in range(len(names)) if number not in inside]
    result: list[list[int]] = torch.permute(mesh.mesh, (*outside, *inside)).flatten(len(outside)).flatten(0, -2).tolist()
    return result


def expert_teams(plan: Plan) -> tuple[list[list[int]], list[list[int]]]:
    """The teams of ranks with different experts, which exchange tokens, and those of ranks with the same experts."""
    ranks = plan.grid(1).experts()
    exchanging: list[list[int]] = ranks.reshape(-1, plan.expert).tolist()
    equal: list[list[int]] = ranks.swapaxes(-1, -2).reshape(-1, ranks.shape[-2]).tolist()
    return exchanging, equal


def by_node(ranks: Sequence[int], devices: int) -> list[list[int]]:
    """Ranks in their order, divided where the node changes. devices: of a node."""
    return [list(group) for _, group in groupby(ranks, lambda rank: rank // devices)]


def divided(whole: Sequence[Sequence[int]], size: int) -> tuple[list[list[int]], list[list[int]]]:
    """Divides each team into parts of `size` ranks: the parts, and the teams of ranks with the same place in them."""
    parts = [[list(team[begin : begin + size]) for begin in range(0, len(team), size)] for team in whole]
    return [part for of_team in parts for part in of_team], [
        list(ranks) for of_team in parts for ranks in zip(*of_team, strict=True)
    ]


def holdings(plan: Plan) -> list[list[int]]:
    """The ranks that have the same parameters, by stage and tensor-parallel part, those of the last stage first."""
    grid = plan.grid(1)
    return [
        [rank for worker in range(plan.workers) for rank in grid.members(worker, stage)[part :: plan.tensor]]
        for stage in reversed(range(plan.stages))
        for part in range(plan.tensor)
    ]
