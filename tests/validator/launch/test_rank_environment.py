"""Rank numbers and rendezvous address from the environment of torchrun or Slurm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.launch.rank_environment import MeetingPoint, RankEnvironment, hosts_in, meeting_point, place_in

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4"}
ADDRESS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
# What srun adds in a step of fewer tasks than the job has; nodes have different numbers of them.
STEP = SLURM | {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "gpu[09-10],login1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
    "SLURM_NODEID": "2",
}


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM | ADDRESS], ids=["torchrun", "slurm"])
def test_rank_numbers_are_read_from_the_environment(environment: dict[str, str]) -> None:
    assert place_in(environment) == RankEnvironment(rank=5, ranks=8, local_rank=1, local_ranks=4)


def test_slurm_variables_give_the_local_rank_count() -> None:
    assert place_in(STEP) == RankEnvironment(rank=5, ranks=7, local_rank=1, local_ranks=3)


@pytest.mark.parametrize(
    "environment",
    [{}, ADDRESS, SLURM, STEP | {"SLURM_STEP_NUM_TASKS": "1"}],
    ids=["nothing", "address", "batch script", "a shell under srun"],
)
def test_ranks_are_started_locally_without_launcher_variables(environment: dict[str, str]) -> None:
    assert place_in(environment) is None


@pytest.mark.parametrize("environment", [TORCHRUN | {"RANK": "first"}, ADDRESS | {"SLURM_PROCID": "0"}])
def test_incomplete_launcher_variables_are_rejected(environment: dict[str, str]) -> None:
    with pytest.raises(InputError, match="set all of them, or none"):
        place_in(environment)


def test_the_rendezvous_address_is_taken_from_the_environment() -> None:
    assert meeting_point(TORCHRUN | ADDRESS) == MeetingPoint("10.0.0.1", 29500, hosted=False)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert meeting_point(TORCHRUN | ADDRESS | agent).hosted
    assert meeting_point(STEP | ADDRESS) == MeetingPoint("10.0.0.1", 29500, hosted=False)


def test_slurm_tasks_use_their_first_host_and_a_job_specific_port() -> None:
    point = meeting_point(STEP)
    assert point.host == "gpu09"
    assert point == meeting_point(STEP | {"SLURM_PROCID": "0"})
    others = [meeting_point(STEP | {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step}) for job in ("4242", "4243") for step in "34"]
    assert len({other.port for other in others}) == 4
    assert all(1024 < other.port < 32768 for other in others), "not where Linux takes ports for itself"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (TORCHRUN, "set MASTER_ADDR and MASTER_PORT"),
        (TORCHRUN | {"MASTER_ADDR": "a"}, "set MASTER_PORT, or"),
        (TORCHRUN | ADDRESS | {"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is not a port"),
        (STEP | {"SLURM_STEP_NODELIST": "gpu[1-"}, r"'gpu\[1-' is not a list of hosts; set MASTER_ADDR"),
        (STEP | {"SLURM_STEP_NODELIST": "gpu[a]"}, "is not a list of hosts"),
    ],
)
def test_an_ambiguous_rendezvous_address_is_rejected(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        meeting_point(environment)


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("one", ["one"]),
        ("one,two", ["one", "two"]),
        ("gpu[8-10,12]", ["gpu8", "gpu9", "gpu10", "gpu12"]),
        ("gpu[08-10].cluster,login", ["gpu08.cluster", "gpu09.cluster", "gpu10.cluster", "login"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
    ],
)
def test_slurm_host_lists_are_parsed(nodelist: str, hosts: list[str]) -> None:
    assert hosts_in(nodelist) == hosts


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=8, unique=True), st.integers(1, 5))
def test_numbered_host_lists_are_expanded(numbers: list[int], width: int) -> None:
    texts = [f"{number:0{width}d}" for number in numbers]
    assert hosts_in(f"node[{','.join(texts)}]") == [f"node{text}" for text in texts]
