"""The rank as which torchrun, accelerate, Slurm or mpirun has started this process, and the address at which ranks meet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from scaleproof.simulator.common.errors import InputError, RankError

# Below the ports that Linux assigns (net.ipv4.ip_local_port_range), so that the port of a job's step is unlikely to be in use.
_FIRST_PORT: Final = 15_000
_PORTS: Final = 16_000
_TORCHRUN: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SLURM: Final = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")


# Of Open MPI, and of launchers with Hydra (MPICH, Intel MPI).
_MPI: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class ContactLostError(RankError):
    """Ranks have lost contact, so that no further scenario can be measured."""


@dataclass(frozen=True)
class RankEnvironment:
    """A process started by another launcher: its number among all ranks, and among those of its machine."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int

    @classmethod
    def of(cls, environment: Mapping[str, str], names: tuple[str, str, str, str]) -> Self:
        """From the environment variables `names`. Raises InputError where one is missing or not a number."""
        try:
            return cls(*(int(environment[name]) for name in names))
        except (KeyError, ValueError):
            raise InputError(
                f"the environment has {names[0]}, but not {', '.join(names[1:])} as numbers; set all of them, or none"
            ) from None


@dataclass(frozen=True)
class MeetingPoint:
    """The address at which ranks meet. hosted: whether the launcher listens there already; else rank 0 does."""

    host: str
    port: int
    hosted: bool


def place_in(environment: Mapping[str, str]) -> RankEnvironment | None:
    """The rank that the environment describes; None if no launcher has started this process.

    Batch scripts and interactive shells have Slurm's variables too, so they count only with those of an srun of several tasks,
    or with MASTER_ADDR and MASTER_PORT. Raises InputError where the description is incomplete.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        local = {"LOCAL_RANK": environment["RANK"], "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"]}
        return RankEnvironment.of(local | dict(environment), _TORCHRUN)
    for names in _MPI:
        if names[0] in environment and names[1] in environment and "SLURM_PROCID" not in environment:
            return RankEnvironment.of(environment, names)
    has_address = "MASTER_ADDR" in environment and "MASTER_PORT" in environment
    by_srun = "SLURM_STEP_NODELIST" in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    if "SLURM_PROCID" in environment and (has_address or by_srun):
        return RankEnvironment.of(dict(environment) | dict(_tasks(environment)), _SLURM)
    return None


def meeting_point(environment: Mapping[str, str]) -> MeetingPoint:
    """The address at which the environment's ranks meet: MASTER_ADDR and MASTER_PORT.

    Slurm's tasks otherwise meet on their first host, at a port derived from the job's number. Raises InputError where the
    address cannot be determined.
    """
    slurm = dict(_slurm_point(environment)) if "SLURM_PROCID" in environment else {}
    given = slurm | {name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if environment.get(name)}
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in given]
    if missing:
        raise InputError(f"the environment has no address of rank 0; set {' and '.join(missing)}, or start with torchrun")
    port = given["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"MASTER_PORT={port} is not a port; give a number from 1 to 65535")
    return MeetingPoint(given["MASTER_ADDR"], int(port), environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def hosts_in(nodelist: str) -> list[str]:
    """The hosts of a list in Slurm's format: 'gpu[08-10,12],login1'. Raises InputError for anything else."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodelist)
    if ",".join(parts) != nodelist or not parts:
        raise InputError(f"{nodelist!r} is not a list of hosts; set MASTER_ADDR to the machine of rank 0")
    return [host for part in parts for host in _expanded(part)]


def _expanded(part: str) -> Iterator[str]:
    """The hosts of one name with any number of ranges in it."""
    match = re.search(r"\[([^\]]*)\]", part)
    if match is None:
        yield part
        return
    for numbers in match[1].split(","):
        first, _, last = numbers.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise InputError(f"{part!r} is not a list of hosts; set MASTER_ADDR to the machine of rank 0")
        for number in range(int(first), int(last or first) + 1):
            for rest in _expanded(part[match.end() :]):
                yield f"{part[: match.start()]}{number:0{len(first)}d}{rest}"


def _tasks(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables with the number of the step's tasks, in all and on this machine; a step may have fewer than its job."""
    in_all = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "")
    yield "SLURM_NTASKS", in_all
    by_node = list(_repeated(environment.get("SLURM_STEP_TASKS_PER_NODE", "")))
    node = environment.get("SLURM_NODEID", "0")
    if node.isdecimal() and int(node) < len(by_node):
        yield "SLURM_NTASKS_PER_NODE", by_node[int(node)]
    elif "SLURM_NTASKS_PER_NODE" not in environment:
        yield "SLURM_NTASKS_PER_NODE", in_all


def _repeated(counts: str) -> Iterator[str]:
    """'2(x3),1' as 2, 2, 2, 1."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        yield from [count] * int(times or 1)


def _slurm_point(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    nodelist = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if nodelist and not environment.get("MASTER_ADDR"):
        yield "MASTER_ADDR", hosts_in(nodelist)[0]
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "0")
    if job.isdecimal() and step.isdecimal():
        yield "MASTER_PORT", str(_FIRST_PORT + (int(job) * 31 + int(step)) % _PORTS)
