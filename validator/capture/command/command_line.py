"""The command that starts a script, as users write it: `python train.py`, `python -m train`, or torchrun with its options."""

from __future__ import annotations

import contextlib
import io
import itertools
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster, load_device
from scaleproof.validator.capture.backend.policies import policy_of
from scaleproof.validator.capture.command.launchers import (
    LAUNCHERS,
    MODULES,
    PYTHON,
    TORCHRUN,
    VARIABLE,
    Launcher,
    Numbers,
    console_script,
    numbers_of,
    program_at,
    torchrun_line,
    variables_of,
)
from scaleproof.validator.capture.job import CaptureJob, DeviceProperties, Script
from scaleproof.validator.capture.packages import STAND_INS

# Options of Python that have a value of their own.
_WITH_VALUE: Final = ("-W", "-X")
_USUAL_NODE: Final = 8
_EXAMPLE: Final = "for example: scaleproof capture --ranks 8 --device h100-80gb-sxm -- python train.py"
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"


class ScriptCommand(NamedTuple):
    """A script, and how many ranks a launcher starts, how many of them per node, and on how many nodes it starts one for each
    device; None if the command does not say."""

    script: Script
    ranks: int | None = None
    ranks_per_node: int | None = None
    nodes: int | None = None


def parse(command: Sequence[str]) -> ScriptCommand:
    """The script of a command. Raises InputError."""
    words = list(command)
    given = [word.partition("=") for word in itertools.takewhile(VARIABLE.match, words)]
    variables = {name: value for name, _, value in given}
    words = words[len(given) :]
    if not words:
        raise InputError(f"give the command that starts the script after --; {_EXAMPLE}")
    started = _with(_started(words), [(name, value.replace("$", "$$")) for name, value in variables.items()])
    visible = [one for one in variables.get(_DEVICES, "").split(",") if one]
    if visible and started.ranks is None:
        return started._replace(ranks=len(visible) * (started.nodes or 1), ranks_per_node=len(visible))
    return started


def _started(words: Sequence[str]) -> ScriptCommand:
    program = Path(words[0]).name
    if program in TORCHRUN:
        return _of_torchrun(words)
    if PYTHON.fullmatch(program):
        return _of_python(words)
    if program in LAUNCHERS:
        return _of_launcher(LAUNCHERS[program], [program, *words[1:]])
    if not Path(words[0]).is_file() and console_script(words[0]) is not None:
        return ScriptCommand(Script(words[0], tuple(words[1:])))
    if not program.endswith(".py") and (Path(words[0]).is_file() or shutil.which(words[0]) is not None):
        line = torchrun_line(words, Numbers())
        raise InputError(f"{program}: capture does not read what this starts; give the command that it runs, such as: {line}")
    return ScriptCommand(_script(words))


def _of_python(words: Sequence[str]) -> ScriptCommand:
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2 if rest[0] in _WITH_VALUE else 1 :]
    if rest[:1] == ["-c"]:
        raise InputError("python -c: write these lines into a file, and give python FILE.py")
    if rest[:1] != ["-m"]:
        return ScriptCommand(_script(rest))
    if len(rest) < 2:
        raise InputError(f"-m needs the name of a module; {_EXAMPLE}")
    if rest[1] in (*TORCHRUN, *MODULES):
        return _started([*MODULES.get(rest[1], (rest[1],)), *rest[2:]])
    return ScriptCommand(Script(rest[1], tuple(rest[2:]), is_module=True))


def _of_launcher(launcher: Launcher, words: Sequence[str]) -> ScriptCommand:
    """The script that a launcher of the table starts, or the launcher itself where ranks run it."""
    scripts = (at for at, word in enumerate(words) if word.endswith(".py"))
    at = next(scripts, None) if launcher.is_played else program_at(words)
    own = words[:at]
    numbers = numbers_of(launcher, own)
    if launcher.is_played:
        if console_script(words[0]) is None:
            line = torchrun_line(words, numbers)
            raise InputError(f"{words[0]} is not installed here; pip install it into this environment, or give: {line}")
        return ScriptCommand(Script(words[0], tuple(words[1:])), numbers.ranks, numbers.per_node)
    if at is None:
        line = torchrun_line(words, numbers)
        raise InputError(f"{' '.join(words)}: no script found; give the command that it runs, such as: {line}")
    rest = words[at:]
    # a launcher's own -m is Python's
    inner = parse(["python", "-m", *rest[1:]] if rest[0] in ("-m", "--module") else rest)
    if launcher.argument and "--no_local_rank" not in own:
        inner = inner._replace(script=replace(inner.script, arguments=(launcher.argument, *inner.script.arguments)))
    environment = dict(launcher.environment) | dict(variables_of(launcher, own))
    if inner.ranks is not None or inner.nodes is not None:
        # the inner launcher is started once on each node
        of_node = {"${rank}": "${node}", "${local_rank}": "0", "${ranks}": "${nodes}", "${per_node}": "1"}
        for field, value in of_node.items():
            environment = {name: text.replace(field, value) for name, text in environment.items()}
        return _with(inner, environment.items())
    tasks = numbers.ranks or numbers.nodes
    return _with(inner._replace(ranks=tasks, ranks_per_node=numbers.per_node if numbers.ranks else None), environment.items())


def _with(started: ScriptCommand, environment: Iterable[tuple[str, str]]) -> ScriptCommand:
    """A command in an environment; what it sets itself comes first."""
    script = started.script
    return started._replace(script=replace(script, environment=tuple((dict(environment) | dict(script.environment)).items())))


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
    last is kept. values: text of the policy for integers that floats decide. packages: that count as installed,
    separated by commas.
    """
    ranks = ranks or started.ranks
    if ranks is None and started.nodes is None:
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
    per_node = per_node or _USUAL_NODE
    ranks = ranks or (started.nodes or 1) * per_node
    per_node = min(per_node, ranks)
    return CaptureJob(started.script, ranks, per_node, DeviceProperties.of(device), steps, values, packages=named), name


def _script(words: Sequence[str]) -> Script:
    if not words:
        raise InputError(f"the command has no script; {_EXAMPLE}")
    if not Path(words[0]).is_file():
        raise InputError(
            f"{words[0]}: no such script; give the path of a Python file, relative to {Path.cwd()}, or a command that is "
            "installed in this environment"
        )
    return Script(words[0], tuple(words[1:]))


def _of_torchrun(words: Sequence[str]) -> ScriptCommand:
    """The script that torchrun starts, or the older torch.distributed.launch."""
    from torch.distributed.run import get_args_parser

    is_older = words[0] == "torch.distributed.launch"
    parser = get_args_parser()
    if is_older:
        parser.add_argument("--use-env", "--use_env", action="store_true")
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            options: Any = parser.parse_args(list(words[1:]))
    except SystemExit:
        last = errors.getvalue().strip().rpartition("\n")[2]
        raise InputError(f"torchrun does not accept {' '.join(words[1:])} ({last})") from None
    nodes = int(str(options.nnodes).partition(":")[0])
    arguments = options.training_script_args
    if is_older and not options.use_env:
        arguments = ["--local-rank=${local_rank}", *arguments]
    command = [options.training_script, *arguments]
    if options.no_python:
        inner = parse(command)
    else:
        inner = ScriptCommand(Script(command[0], tuple(command[1:]), is_module=True) if options.module else _script(command))
    per_node = str(options.nproc_per_node)
    if not per_node.isdecimal():
        return inner._replace(nodes=nodes)
    ranks = nodes * int(per_node)
    return inner._replace(ranks=ranks, ranks_per_node=int(per_node)) if ranks > 1 else inner
