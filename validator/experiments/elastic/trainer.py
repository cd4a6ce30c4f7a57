"""The process that trains: joins the others, goes on where the last checkpoint is, and tells what it does and when.

torchrun's agent starts it again after a failure, in a new group of ranks. Where our supervisor does, only who was killed is
started again: the others keep their process, wait for it and meet it in the next group.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scaleproof.validator.experiments.elastic.job import Job, read_job
from scaleproof.validator.experiments.elastic.records import EventLog
from scaleproof.validator.netlab.wiring import INTERFACE

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from scaleproof.validator.launch.rank_environment import RankEnvironment

# What torch tells of broken connections is noted in a line; it reads this when it is loaded.
SETTINGS: Final = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
_FAILED: Final = 1


def main(folder: Path, host: int, agent: int) -> None:
    """Trains as the rank that torchrun's agent, of that process id, has started this process as. What fails ends it at once."""
    end_with(agent)
    notes = EventLog(folder, host, "trainer")
    notes.note("begun")
    job = read_job(folder)
    _import(notes)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from scaleproof.validator.launch.rank_environment import meeting_point, place_in

    place, point = place_in(os.environ), meeting_point(os.environ)
    assert place is not None, "torchrun says so"
    # each round of torchrun has a port of its own, see agent.py
    patience = timedelta(seconds=job.patience_s)
    store = TCPStore(point.host, point.port, None, place.rank == 0, patience, wait_for_workers=False)
    try:
        _train(job, place, store, notes)
    except Exception as error:
        _note_failure(error, notes)
        # the interpreter takes its time to be taken down
        os._exit(_FAILED)


def stay(launcher: int, namespace: str, folder: Path, host: int, round_number: int) -> None:
    """Trains in the namespace as rank number `host` until all is done, in a new group after each failure of another.

    launcher: its process id. round_number: how many groups there were before; below 0 the process waits for its end instead.
    """
    from scaleproof.validator.netlab.namespaces import enter

    end_with(launcher)
    enter(Path(namespace))
    os.environ |= SETTINGS
    notes = EventLog(folder, host, "trainer")
    notes.note("begun")
    job = read_job(folder)
    _import(notes)
    if round_number < 0:
        signal.pause()
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from scaleproof.validator.launch import rank
    from scaleproof.validator.launch.rank_environment import RankEnvironment

    while True:
        store = FileStore(str(folder / f"store-{round_number}"), job.ranks)
        try:
            _train(job, RankEnvironment(host, job.ranks, 0, 1), store, notes)
            return
        except Exception as error:
            _note_failure(error, notes)
            if not rank.is_communication(error):
                raise
        finally:
            rank.leave()
        round_number += 1


def end_with(parent: int) -> None:
    """This process ends when the one that has started it does, however that ends."""
    from scaleproof.validator.launch.fork_server import die_with_parent

    die_with_parent()()
    if os.getppid() != parent:
        os._exit(_FAILED)


def _import(notes: EventLog) -> None:
    """What training needs, before anything is waited for."""
    # optimizers ask for it when they are built
    import torch._dynamo  # noqa: F401

    import scaleproof.validator.experiments.elastic.state
    import scaleproof.validator.train.train  # noqa: F401

    notes.note("imported")


def _train(job: Job, place: RankEnvironment, store: Store, notes: EventLog) -> None:
    """From joining the group until all steps are done."""
    import torch

    from scaleproof.validator.experiments.elastic.state import Keeper
    from scaleproof.validator.launch import rank
    from scaleproof.validator.record.recorder import Recorder
    from scaleproof.validator.strategy import create
    from scaleproof.validator.strategy.base import Context
    from scaleproof.validator.train.emulated_compute import Pace

    _wait_for_all(store, place, job.patience_s)
    rank.join(place, store, job.silence_s, accelerator=False)
    notes.note("joined", rank=place.rank)
    scenario, me = job.by_ranks[place.ranks], rank.here()
    recorder = Recorder(me.status, lambda _: None)
    pace = Pace(scenario) if scenario.compute == "paced" else None
    with closing(create(Context(scenario, me.rank, me.device, recorder, job.steps, pace), scenario.strategy)) as trainer:
        keeper = Keeper(job, trainer, notes)
        first = keeper.begin()
        notes.note("ready", step=first, rank=me.rank)
        for index in range(first, job.steps):
            recorder.begin_step(index - job.warmup + 1)
            trainer.take(index)
            recorder.end_step()
            notes.note("step", step=index + 1, rank=me.rank)
            if (index + 1) % job.every == 0:
                keeper.save(index + 1)
        notes.note("ended", step=job.steps, rank=me.rank, digest=keeper.digest())
        parameters = {name: value.detach().clone() for name, value in trainer.parameters().items()}
        torch.save(parameters, job.folder / f"rank{me.rank}.pt")
        # who leaves early looks dead to its peers
        torch.distributed.barrier()


def _wait_for_all(store: Store, place: RankEnvironment, patience_s: float) -> None:
    """Some start later than others, and may; in the group that is made then, silence is taken for death."""
    store.set(f"here {place.rank}", "")
    store.wait([f"here {rank}" for rank in range(place.ranks)], timedelta(seconds=patience_s))


def _note_failure(error: Exception, notes: EventLog) -> None:
    from scaleproof.simulator.common.errors import one_line

    notes.note("noticed", text=one_line(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
