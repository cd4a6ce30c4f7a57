"""The command that starts a script, as users write it: `python train.py`, `python -m train`, or torchrun with its options."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster, load_device
from scaleproof.validator.capture.backend.policies import policy_of
from scaleproof.validator.capture.job import CaptureJob, DeviceProperties, Script
from scaleproof.validator.capture.packages import STAND_INS

_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?(\.exe)?")
# Options of Python that have a value of their own.
_WITH_VALUE: Final = ("-W", "-X")
_LAUNCHERS: Final = ("torch.distributed.run", "torch.distributed.launch")
_USUAL_NODE: Final = 8
_EXAMPLE: Final = "for example: scaleproof capture --ranks 8 --device h100-80gb-sxm -- python train.py"


class ScriptCommand(NamedTuple):
    """A script, and how many ranks a launcher starts and how many of them per node; None if the command does not say."""

    script: Script
    ranks: int | None = None
    ranks_per_node: int | None = None


def parse(command: Sequence[str]) -> ScriptCommand:
    """The script of a command. Raises InputError."""
    words = list(command)
    if not words:
        raise InputError(f"give the command that starts the script after --; {_EXAMPLE}")
    program = Path(words[0]).name
    if program == "torchrun":
        return _launched(words[1:])
    if program == "accelerate":
        # its own options come before the script, whose name is the first that ends with .py
        place = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
        if place is None:
            raise InputError(f"{' '.join(words)}: no script found; start it with torchrun or python")
        return ScriptCommand(_script(words[place:]))
    if not _PYTHON.fullmatch(program):
        return ScriptCommand(_script(words))
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2 if rest[0] in _WITH_VALUE else 1 :]
    if rest[:1] != ["-m"]:
        return ScriptCommand(_script(rest))
    if len(rest) < 2:
        raise InputError(f"-m needs the name of a module; {_EXAMPLE}")
    if rest[1] in _LAUNCHERS:
        return _launched(rest[2:])
    return ScriptCommand(Script(rest[1], tuple(rest[2:]), is_module=True))


def job_of(
    started: ScriptCommand,
    ranks: int | None,
    device_name: str | None,
    cluster_name: str | None,
    steps: int = 3,
    values: str = "balanced",
    packages: str = "",
) -> tuple[CaptureJob, str]:
    """The job of which a command starts one rank, and the name of its device. Raises InputError.

    ranks: None for the number that the command gives. device_name: None for the cluster's. steps: that are played, of which the
    last is kept. values: text of the policy for integers that floats decide. packages: that count as
    installed, separated by commas.
    """
    ranks = ranks or started.ranks
    if ranks is None:
        raise InputError("give the number of ranks: --ranks 8")
    if device_name is None and cluster_name is None:
        raise InputError("give the GPU that the script sees: --device h100-80gb-sxm, or --cluster NAME")
    per_node = started.ranks_per_node
    if cluster_name is not None:
        path = catalog.find_part("cluster", cluster_name)
        cluster = load_cluster(path)
        per_node = per_node or cluster.node.devices
        own = yaml_file.read(path).data.get("device")
        name, device = own if isinstance(own, str) else cluster.device.name, cluster.device
    if device_name is not None:
        name, device = device_name, load_device(device_name)
    policy_of(values)
    named = tuple(filter(None, packages.split(",")))
    if unknown := [name for name in named if name not in STAND_INS]:
        raise InputError(f"--with {unknown[0]}: no stand-in of this package; there are {', '.join(STAND_INS)}")
    per_node = min(per_node or _USUAL_NODE, ranks)
    return CaptureJob(started.script, ranks, per_node, DeviceProperties.of(device), steps, values, packages=named), name


def _script(words: Sequence[str]) -> Script:
    if not words:
        raise InputError(f"the command has no script; {_EXAMPLE}")
    if not Path(words[0]).is_file():
        raise InputError(f"{words[0]}: no such script; give the path of a Python file, relative to {Path.cwd()}")
    return Script(words[0], tuple(words[1:]))


def _launched(words: Sequence[str]) -> ScriptCommand:
    """The script that torchrun starts."""
    from torch.distributed.run import get_args_parser

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            options: Any = get_args_parser().parse_args(list(words))
    except SystemExit:
        last = errors.getvalue().strip().rpartition("\n")[2]
        raise InputError(f"torchrun does not accept {' '.join(words)} ({last})") from None
    nodes = int(str(options.nnodes).partition(":")[0])
    per_node = int(options.nproc_per_node) if str(options.nproc_per_node).isdecimal() else None
    script = options.training_script
    arguments = tuple(options.training_script_args)
    parsed = Script(script, arguments, is_module=True) if options.module else _script([script, *arguments])
    ranks = nodes * per_node if per_node is not None and per_node * nodes > 1 else None
    return ScriptCommand(parsed, ranks, per_node if ranks is not None else None)
