"""Training process: joins the others, continues from the last checkpoint, and logs its events.

After a failure torchrun's agent starts it again, in a new group of ranks. Our supervisor restarts only the killed process; the
others wait for it and form a new group with it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scaleproof.proof.elastic.job import Job, read_job
from scaleproof.proof.elastic.records import EventLog
from scaleproof.validator.launch.child import end_with
from scaleproof.validator.launch.job import LOOPBACK
from scaleproof.validator.netlab.wiring import INTERFACE

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from scaleproof.validator.launch.rank_environment import RankEnvironment

# Torch's messages about broken connections are logged in a line instead; torch reads this when it is loaded.
_SETTINGS: Final = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
# In place of a round: train in none.
NO_ROUND: Final = -1


def main(folder: Path, host: int, agent: int) -> None:
    """Trains as the rank given by torchrun's environment. agent: process id of torchrun's agent, with which this process ends.
    A failure ends it at once."""
    end_with(agent)
    job, log = _begin(folder, host)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from scaleproof.validator.launch.rank_environment import meeting_point, place_in

    place, point = place_in(os.environ), meeting_point(os.environ)
    assert place is not None, "torchrun sets it"
    # each round of torchrun has a port of its own, see agent.py
    patience = timedelta(seconds=job.patience_s)
    store = TCPStore(point.host, point.port, None, place.rank == 0, patience, wait_for_workers=False)
    try:
        _train(job, place, store, log)
    except Exception as error:
        _note_failure(error, log)
        # skip the slow shutdown of the interpreter
        os._exit(1)


def stay(_: int, launcher: int, namespace: str, folder: str, host: int, round_number: int) -> None:
    """Trains in the namespace as rank `host` until all is done, in a new group after each failure of another rank.

    launcher: its process id. round_number: number of earlier groups, or NO_ROUND: the process then waits to be killed instead.
    """
    end_with(launcher)
    enter_host(namespace)
    job, log = _begin(Path(folder), host)
    if round_number == NO_ROUND:
        signal.pause()
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from scaleproof.validator.launch import rank
    from scaleproof.validator.launch.rank_environment import RankEnvironment

    while True:
        store = FileStore(f"{folder}/store-{round_number}", job.ranks)
        try:
            _train(job, RankEnvironment(host, job.ranks, 0, 1), store, log)
            return
        except Exception as error:
            _note_failure(error, log)
            if not rank.is_communication(error):
                raise
        finally:
            rank.leave()
        round_number += 1


def enter_host(namespace: str) -> None:
    """Makes this process one of a host: of a network namespace, or of this machine if it is empty."""
    if namespace:
        from scaleproof.validator.launch.namespaces import enter

        enter(Path(namespace))
    os.environ |= _SETTINGS | {"GLOO_SOCKET_IFNAME": INTERFACE if namespace else LOOPBACK}


def _begin(folder: Path, host: int) -> tuple[Job, EventLog]:
    """The job and this process's log. Imports what training needs, before anything waits for it."""
    log = EventLog(folder, host, "trainer")
    log.note("begun")
    job = read_job(folder)
    # imported by optimizers when they are built
    import torch._dynamo  # noqa: F401

    import scaleproof.proof.elastic.state
    import scaleproof.validator.strategy.train  # noqa: F401

    log.note("imported")
    return job, log


def _train(job: Job, place: RankEnvironment, store: Store, log: EventLog) -> None:
    """Joins the group and takes all steps."""
    import torch

    from scaleproof.proof.elastic.hand_over import HandOver
    from scaleproof.proof.elastic.state import Keeper
    from scaleproof.validator.launch import rank
    from scaleproof.validator.record.recorder import Recorder
    from scaleproof.validator.strategy import create
    from scaleproof.validator.strategy.base import Context
    from scaleproof.validator.train.emulated_compute import Pace

    _wait_for_all(store, place, job.patience_s)
    rank.join(place, store, job.silence_s)
    log.note("joined", rank=place.rank)
    scenario, me = job.by_ranks[place.ranks], rank.here()
    recorder = Recorder(me.status, lambda _: None)
    pace = Pace(scenario) if scenario.compute == "paced" else None
    with closing(create(Context(scenario, me.rank, me.device, recorder, job.steps, pace), scenario.strategy)) as trainer:
        keeper = Keeper(job, trainer, log)
        first = keeper.begin()
        hand_over = HandOver() if job.hands_over else None
        log.note("ready", step=first, rank=me.rank, ranks=me.ranks)
        for index in range(first, job.steps):
            recorder.begin_step(index - job.warmup + 1)
            trainer.take(index)
            recorder.end_step()
            log.note("step", step=index + 1, rank=me.rank, loss=trainer.step_loss(index))
            if hand_over is not None and hand_over.agreed():
                keeper.save(index + 1)
                log.note("handed over", step=index + 1, rank=me.rank)
                # agents that did not ask for it start the process again
                os._exit(1)
            if (index + 1) % job.every == 0:
                keeper.save(index + 1)
        trainer.complete()
        log.note("ended", step=job.steps, rank=me.rank, digest=keeper.digest())
        parameters = {name: value.detach().clone() for name, value in trainer.parameters().items()}
        torch.save(parameters, job.folder / f"rank{me.rank}.pt")
        # a rank that leaves early looks dead to its peers
        torch.distributed.barrier()


def _wait_for_all(store: Store, place: RankEnvironment, patience_s: float) -> None:
    """Waits for all ranks, some of which start late; in the group that is formed afterwards, silence means death."""
    store.set(f"here {place.rank}", "")
    store.wait([f"here {rank}" for rank in range(place.ranks)], timedelta(seconds=patience_s))


def _note_failure(error: Exception, log: EventLog) -> None:
    from scaleproof.simulator.common.errors import one_line

    log.note("noticed", text=one_line(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
