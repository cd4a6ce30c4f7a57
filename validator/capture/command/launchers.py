"""Programs that start scripts: which of their options say how many ranks there are, and what they set for each rank.

Most are read only. Those that set much of the environment are played: every rank runs the launcher itself, which then starts
the script in the same process (see `start_in_place`).
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import InputError

PYTHON: Final = re.compile(r"python(3(\.\d+)?)?(\.exe)?")
VARIABLE: Final = re.compile(r"[A-Za-z_]\w*=")
# torchrun's own parser reads the options of these.
TORCHRUN: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# Options whose value may be the name of a program.
_NAMED: Final = (
    "--with", "--extra", "--group", "--package", "--python", "-p", "-n", "--name", "-J", "--job-name", "-o", "--output",
)  # fmt: skip


class Launcher(NamedTuple):
    """ranks, per_node, nodes: options with the number of ranks, of those of a node, and of nodes. hosts, devices: options with
    slots of hosts or a file of them, and with devices of hosts. variables: options with variables; environment: of each rank,
    see `validator.capture.job.set_environment`. argument: that the script gets first. is_played: whether ranks run the
    launcher. settings: option and usual path of a file with the same numbers."""

    ranks: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    argument: str = ""
    is_played: bool = False
    settings: tuple[str, str] | None = None


_SLURM: Final = (
    ("SLURM_PROCID", "${rank}"), ("SLURM_LOCALID", "${local_rank}"), ("SLURM_NODEID", "${node}"), ("SLURM_NTASKS", "${ranks}"),
    ("SLURM_NPROCS", "${ranks}"), ("SLURM_NNODES", "${nodes}"), ("SLURM_JOB_NUM_NODES", "${nodes}"),
    ("SLURM_NTASKS_PER_NODE", "${per_node}"), ("SLURM_TASKS_PER_NODE", "${per_node}(x${nodes})"),
    ("SLURM_NODELIST", "node[0-${last_node}]"), ("SLURM_JOB_NODELIST", "node[0-${last_node}]"), ("SLURM_JOB_ID", "1"),
    ("SLURM_JOBID", "1"), ("SLURM_JOB_NAME", "capture"), ("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
)  # fmt: skip
_MPI: Final = (
    ("OMPI_COMM_WORLD_RANK", "${rank}"), ("OMPI_COMM_WORLD_SIZE", "${ranks}"), ("OMPI_COMM_WORLD_LOCAL_RANK", "${local_rank}"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "${per_node}"), ("OMPI_COMM_WORLD_NODE_RANK", "${local_rank}"), ("PMI_RANK", "${rank}"),
    ("PMI_SIZE", "${ranks}"), ("MPI_LOCALRANKID", "${local_rank}"), ("MPI_LOCALNRANKS", "${per_node}"),
)  # fmt: skip
_MPIRUN: Final = Launcher(
    ranks=("-np", "--np", "-n"), per_node=("-npernode", "--npernode", "-ppn", "--ppn", "-N"), environment=_MPI,
    hosts=("-H", "-host", "--host", "-hosts", "-hostfile", "--hostfile", "-f", "-machinefile", "--machinefile"),
    variables=("-x",),
)  # fmt: skip
_PREFIX: Final = Launcher()

LAUNCHERS: Final[dict[str, Launcher]] = {
    "accelerate": Launcher(
        ranks=("--num-processes",), nodes=("--num-machines",), is_played=True,
        settings=("--config-file", "~/.cache/huggingface/accelerate/default_config.yaml"),
    ),
    "fabric": Launcher(per_node=("--devices",), nodes=("--num-nodes",), is_played=True),
    "lightning": Launcher(per_node=("--devices",), nodes=("--num-nodes",), is_played=True),
    "litgpt": Launcher(per_node=("--devices",), nodes=("--num-nodes",), is_played=True),
    "tune": Launcher(per_node=("--nproc-per-node",), nodes=("--nnodes",), is_played=True),
    "xtuner": Launcher(is_played=True),
    "composer": Launcher(ranks=("--world-size",), per_node=("-n", "--nproc")),
    "deepspeed": Launcher(
        per_node=("--num-gpus", "--num-accelerators"), nodes=("--num-nodes",), argument="--local_rank=${local_rank}",
        hosts=("-H", "--hostfile"), devices=("-i", "--include"),
    ),
    "srun": Launcher(
        ranks=("-n", "--ntasks"), per_node=("--ntasks-per-node", "--tasks-per-node"), nodes=("-N", "--nodes"),
        variables=("--export",), environment=_SLURM,
    ),
    "mpirun": _MPIRUN, "mpiexec": _MPIRUN, "mpiexec.hydra": _MPIRUN, "orterun": _MPIRUN,
} | dict.fromkeys(
    ("env", "uv", "poetry", "conda", "mamba", "pdm", "pipenv", "hatch", "pixi", "nohup", "time", "nice", "numactl", "taskset",
     "stdbuf", "timeout", "nsys", "ncu", "apptainer", "singularity"), _PREFIX,
)  # fmt: skip
# Modules that are launchers, by the name of their program.
MODULES: Final = {
    "accelerate.commands.launch": ("accelerate", "launch"), "accelerate.commands.accelerate_cli": ("accelerate",),
    "deepspeed": ("deepspeed",), "deepspeed.launcher.runner": ("deepspeed",), "composer.cli.launcher": ("composer",),
    "lightning.fabric.cli": ("fabric",), "torchtune._cli.tune": ("tune",),
}  # fmt: skip


class Numbers(NamedTuple):
    """Ranks that a launcher starts, how many of them on each node, and nodes; None if it does not say."""

    ranks: int | None = None
    per_node: int | None = None
    nodes: int | None = None


def program_at(words: Sequence[str]) -> int | None:
    """The place in a launcher's command of the first word of the command that it starts."""
    for at in range(1, len(words)):
        word, before = words[at], words[at - 1]
        if words[0] == "env" and VARIABLE.match(word):
            return at
        if word in ("-m", "--module") and words[0] in ("uv", "deepspeed", "composer"):
            return at
        name = Path(word).name
        is_known = name in LAUNCHERS or name in TORCHRUN or PYTHON.fullmatch(name) or name.endswith(".py")
        if is_known and before not in _NAMED:
            return at
        if not before.startswith("-") and at > 1 and not word.startswith("-") and console_script(word) is not None:
            return at
    return None


def numbers_of(launcher: Launcher, words: Sequence[str]) -> Numbers:
    """What a launcher's options say. Raises InputError for files that cannot be read."""
    settings = _settings(launcher, words)

    def number(names: Sequence[str]) -> int | None:
        given = [_number(value) for value in values_of(names, words)]
        of_file = [settings.get(name.lstrip("-").replace("-", "_")) for name in names]
        return next((each for each in (*reversed(given), *of_file) if isinstance(each, int)), None)

    ranks, per_node, nodes = number(launcher.ranks), number(launcher.per_node), number(launcher.nodes)
    devices = next(values_of(launcher.devices, words), "")
    slots = [one.count(",") + (":" in one) for one in devices.split("@")] if devices else _slots(launcher, words)
    if slots:
        nodes = nodes or len(slots)
        per_node = per_node or slots[0] or (-(-ranks // nodes) if ranks else None)
    if ranks is None and per_node is not None:
        ranks = per_node * (nodes or 1)
    elif ranks is not None and per_node is None and nodes is not None:
        per_node = -(-ranks // nodes)
    return Numbers(ranks, per_node, nodes)


def variables_of(launcher: Launcher, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Variables that a launcher's options set."""
    for value in values_of(launcher.variables, words):
        for one in value.split(","):
            name, separator, text = one.partition("=")
            if separator:
                yield name, text.replace("$", "$$")


def values_of(names: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """Values of an option that has several names, whose _ and - are the same."""
    for at, word in enumerate(words):
        name, separator, value = word.partition("=")
        dashed = name.replace("_", "-")
        if dashed in names:
            yield value if separator else words[at + 1] if at + 1 < len(words) else ""
            continue
        short = next((one for one in names if len(one) == 2 and word.startswith(one) and word[2:].isdecimal()), None)
        if short is not None:
            yield word[2:]


def console_script(name: str) -> Path | None:
    """The Python file that a console command runs: on the PATH, or next to this Python."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        return None
    with Path(found).open("rb") as file:
        first = file.readline(256)
    return Path(found) if first.startswith(b"#!") and b"python" in first else None


def package_of(name: str) -> str:
    """The package that a console command belongs to; empty if none says so."""
    entries = importlib.metadata.entry_points(group="console_scripts", name=name)
    return next((entry.module.partition(".")[0] for entry in entries), "")


def torchrun_line(words: Sequence[str], numbers: Numbers) -> str:
    """The command of torchrun that starts the script of another command."""
    at = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    script = " ".join(words[at:]) if at is not None else "train.py ARGS"
    per_node = numbers.per_node or numbers.ranks or 8
    nodes = numbers.nodes or -(-(numbers.ranks or per_node) // per_node)
    return f"torchrun --nnodes {nodes} --nproc_per_node {per_node} {script}"


def start_in_place(start: Callable[[Sequence[str]], None], is_launcher: bool) -> None:
    """Makes launchers start in this process what they would start in processes of all ranks. start: runs a command.
    is_launcher: whether the script is a launcher that is played, whose processes of Python are ranks."""
    import torch.distributed.run as torchrun

    def run(options: Any) -> None:
        words = ["--module"] if options.module else ["--no-python"] if options.no_python else []
        start(["torchrun", *words, options.training_script, *options.training_script_args])

    torchrun.run = run
    original = subprocess.Popen

    class Started(original):  # type: ignore[valid-type, misc]
        """A process, unless it would be a rank."""

        def __init__(self, args: Any, *others: Any, **keywords: Any) -> None:
            words = [str(word) for word in args] if isinstance(args, list | tuple) else [""]
            name = Path(words[0]).name
            if name in TORCHRUN or (is_launcher and (PYTHON.fullmatch(name) or name in LAUNCHERS)):
                os.environ.update(keywords.get("env") or {})
                start(words)
            super().__init__(args, *others, **keywords)

    setattr(subprocess, "Popen", Started)  # noqa: B010 - a type stays a type


def _settings(launcher: Launcher, words: Sequence[str]) -> dict[str, Any]:
    """The file with a launcher's numbers, if there is one."""
    if launcher.settings is None:
        return {}
    option, usual = launcher.settings
    given = next(values_of([option], words), None)
    path = Path(given or usual).expanduser()
    if given is None and not path.is_file():
        return {}
    return yaml_file.read(path).mapping(())


def _number(text: str) -> int | None:
    """A number, or how many are listed: 8, or 0,1,2,3."""
    if text.isdecimal():
        return int(text)
    listed = text.split(",")
    return len(listed) if len(listed) > 1 and all(one.strip().isdecimal() for one in listed) else None


def _slots(launcher: Launcher, words: Sequence[str]) -> list[int]:
    """Ranks of each host, 0 where it does not say: of a file with lines as 'a slots=8' or 'a:8', or of a:8,b:8."""
    hosts = next(values_of(launcher.hosts, words), "")
    if not hosts:
        return []
    if "/" in hosts or Path(hosts).is_file():
        try:
            lines = [line.partition("#")[0].strip() for line in Path(hosts).read_text(encoding="utf-8").splitlines()]
        except OSError as error:
            raise InputError(f"{hosts}: the file of hosts cannot be read ({error.strerror})") from None
    else:
        lines = hosts.split(",")
    each = [re.search(r"(?:slots\s*=\s*|:)(\d+)", line) for line in lines if line]
    return [int(found[1]) if found else 0 for found in each]
