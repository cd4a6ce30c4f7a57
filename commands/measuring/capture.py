"""The command capture: record a step of a training script without its GPUs. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from scaleproof.commands.arguments import Command, positive
from scaleproof.commands.output import print_result, progress

_STEPS: Final = 3
_TIMEOUT_S: Final = 600.0


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    capture = Command(commands, "capture", _capture)
    capture.parser.description = (
        "Run a training script unmodified as single ranks of a large job, on GPUs that do not exist, and record a step of each "
        "kind of rank: operators, communication, memory. The file is a scenario: scaleproof predict capture.zip."
    )
    capture.add("--ranks N", "ranks of the job (those that torchrun's options say)", type=positive)
    capture.add("--device NAME", "the GPU that the script sees (the cluster's): a name from 'scaleproof list' or a file")
    capture.add("--cluster NAME", "the cluster that predictions are for: a name from 'scaleproof list', or a file")
    capture.add("--steps N", f"training steps, of which the last is recorded ({_STEPS})", type=positive, default=_STEPS)
    values = (
        "integers that floats decide, such as a router's choices: balanced (default), zipf:S, or a file with one share per "
    )
    values += "option"
    capture.add("--values POLICY", values, default="balanced")
    capture.add(
        "--samples N", "samples of a step of all ranks together (read from the inputs of modules, by a rule that is printed)",
        type=positive,
    )  # fmt: skip
    capture.add("--tokens N", "tokens of a step of all ranks together (read from the first integers)", type=positive)
    packages = "packages for CUDA that are not here and count as installed where imports are optional: flash_attn,…"
    capture.add("--with PACKAGES", packages, default="", dest="packages")
    capture.add("--memory-only", "print the peak memory by category, module and line; write a file only with --out")
    capture.add("--out FILE.zip", "where the capture is written (capture.zip)", type=Path)
    capture.add("--log DIR", "write what ranks print to DIR", type=Path)
    capture.add_timeout("seconds after which all ranks are ended", _TIMEOUT_S)
    capture.add("--json", "print the result as JSON")
    words = "after --, the command that starts the script: python train.py ARGS, torchrun … train.py, accelerate launch …"
    capture.add("COMMAND", words, nargs=argparse.REMAINDER, dest="command_line")


def _capture(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.capture import describe, describe_memory, memory_plain, plain
    from scaleproof.simulator.captured.reading import script_of_capture
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.scenario.capture_file import SUFFIX
    from scaleproof.validator.launch.launch import require_torch

    require_torch()
    from scaleproof.validator.capture.capture import CaptureOptions, capture
    from scaleproof.validator.capture.command.command_line import job_of, parse

    command = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    started = parse(command)
    job, device = job_of(
        started, options.ranks, options.device, options.cluster, options.steps, options.values, options.packages
    )
    out = options.out or (None if options.memory_only else Path("capture.zip"))
    if out is not None and out.suffix != SUFFIX:
        # the suffix by which other commands know a capture
        out = out.with_name(out.name + SUFFIX)
    with progress(f"capturing {started.script.target}") as report:
        settings = CaptureOptions(device, options.cluster, options.timeout, options.log, options.samples, options.tokens)
        captured, costs = capture(job, settings, report)
    if out is not None:
        captured.write(out)
    for warning in captured.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if options.memory_only:
        limit_bytes = job.device.memory_bytes
        return print_result(options, lambda: memory_plain(captured), lambda: describe_memory(captured, limit_bytes))
    script = None
    try:
        script = script_of_capture(captured, str(out))
    except InputError as error:
        print(f"warning: {error}", file=sys.stderr)
    following = f"scaleproof predict {out}{'' if captured.cluster else ' --set cluster=NAME'}" if script is not None else ""
    return print_result(options, lambda: plain(captured, costs, script), lambda: describe(captured, costs, following, script))
