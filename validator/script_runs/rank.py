"""A rank of a real run of a script: this process runs the script, which is recorded until it has taken enough steps."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.validator.capture.context import ScriptContext
from scaleproof.validator.capture.failures import failure_plain
from scaleproof.validator.capture.job import DeviceProperties, Script, set_environment
from scaleproof.validator.capture.playing.player import folder_of, run_script
from scaleproof.validator.launch import rank
from scaleproof.validator.record import provenance as environment
from scaleproof.validator.record.cpu_usage import Usage
from scaleproof.validator.script_runs import cuda_on_cpu
from scaleproof.validator.script_runs.gloo_group import GlooGroups
from scaleproof.validator.script_runs.host_memory import keep_freed
from scaleproof.validator.script_runs.memory_profile import MemoryProfile
from scaleproof.validator.script_runs.recording import EnoughStepsError, ScriptRecorder

FAILURE: Final = "failure-{}.json"
RECORD: Final = "record-{}.json"


@dataclass(frozen=True)
class ScriptRun:
    """A script that ranks run. ranks_per_node: that see each other's devices. steps: that are measured, after `warmup` others.
    address, port: where ranks meet. folder: where ranks write why they failed. profiles_memory: whether allocations are
    counted, which takes time, so that the run's times are not to be used."""

    script: Script
    ranks: int
    ranks_per_node: int
    device: DeviceProperties
    steps: int
    warmup: int
    address: str
    port: int
    folder: Path
    profiles_memory: bool = False


def run(job: ScriptRun) -> dict[str, Any]:
    """Runs the script on this rank; returns its outcome, see validator.strategy.train.RankOutcome, with the number of its
    steps and the kinds of its communication. Raises ScriptFailedError where the script fails."""
    me = rank.here()
    # the script forms the groups itself
    dist.barrier()
    dist.destroy_process_group()
    set_environment(job.script, me.rank, job.ranks, job.ranks_per_node, job.address, job.port, "reconcile")
    torch.set_num_threads(1)
    keep_freed()
    sys.stdout.flush()
    gc.collect()
    context = ScriptContext(folder_of(job.script))
    memory = MemoryProfile() if job.profiles_memory else None
    recorder = ScriptRecorder(me.status, job.steps + job.warmup, memory.mark if memory is not None else None)
    cuda_on_cpu.install(job.device, me.rank % job.ranks_per_node, job.ranks_per_node)
    GlooGroups(recorder).install()
    recorder.install()
    if memory is not None:
        memory.start()
    before = Usage.now()
    with _failures(job, me.rank, context):
        try:
            run_script(job.script)
        except EnoughStepsError:
            pass
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    usage = Usage.now().since(before)
    if memory is not None:
        return {"steps": recorder.steps, "peaks_bytes": memory.peaks_bytes(), "marks": recorder.marks}
    me.record(recorder.spans(job.warmup))
    provenance = environment.of_process() | {"cpu": environment.cpu_model(), "threads": str(torch.get_num_threads())}
    kinds = [list(kind) for kind in recorder.kinds]
    return {
        "provenance": provenance, "losses": {}, "notes": {}, "machine": environment.machine(), "usage": usage,
        "corrections": [], "memory_bytes": {}, "steps": recorder.steps, "kinds": kinds,
    }  # fmt: skip


class ScriptFailedError(Exception):
    """The script failed on this rank; why is in a file of the job's folder."""


@contextlib.contextmanager
def _failures(job: ScriptRun, number: int, context: ScriptContext) -> Iterator[None]:
    """Writes why the script failed, if it does."""
    try:
        yield
    except BaseException as error:
        plain = failure_plain(error, context, number) | {"by_peer": rank.is_communication(error)}
        write_atomically(job.folder / FAILURE.format(number), json.dumps(plain).encode())
        if isinstance(error, Exception):
            raise
        raise ScriptFailedError(str(error)) from error
