"""A process knows from its environment whether torchrun or Slurm has started it."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from validator.place import Place, place_in

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4"}
ADDRESS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM | ADDRESS], ids=["torchrun", "slurm"])
def test_a_place_is_read(environment: dict[str, str]) -> None:
    assert place_in(environment) == Place(rank=5, ranks=8, local_rank=1, local_ranks=4)


@pytest.mark.parametrize("environment", [{}, ADDRESS, SLURM], ids=["nothing", "address", "slurm without an address"])
def test_ranks_are_started_here_otherwise(environment: dict[str, str]) -> None:
    assert place_in(environment) is None


@pytest.mark.parametrize("environment", [TORCHRUN | {"RANK": "first"}, ADDRESS | {"SLURM_PROCID": "0"}])
def test_half_a_place_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(InputError, match="set them, or none"):
        place_in(environment)
