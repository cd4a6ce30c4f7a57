"""Script that torchrun starts in a test: the command line with a fault of the last rank in scenario `a` only.

After the fault "fail unseen" the others wait as in NCCL's kernels: nothing but aborting their communicators ends that.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import scaleproof
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch import failure_watch
from scaleproof.validator.launch.rank import here
from scaleproof.validator.strategy import train
from scaleproof.validator.train.trained_model import RealModel


def fail() -> None:
    raise ValueError("the weights are gone")


def hang() -> None:
    time.sleep(3600)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """`joinfaulty.py FAULT ARGUMENT…`."""
    do: Callable[[], None] = {"fail": fail, "fail unseen": fail, "hang": hang, "die": die}[sys.argv[1]]
    real_train, loss = train.train, RealModel.loss
    aborted = Event()
    if sys.argv[1] == "fail unseen":
        failure_watch.abort = aborted.set

    def faulty(scenario: Scenario, *args: Any) -> Any:
        def failing(*tensors: Any) -> Any:
            if scenario.name == "a" and here().status.activity.step == 3:
                if here().rank == here().ranks - 1:
                    do()
                elif sys.argv[1] == "fail unseen":
                    aborted.wait()
                    raise RuntimeError("the communicator was aborted")
            return loss(*tensors)

        RealModel.loss = failing  # type: ignore[method-assign]
        return real_train(scenario, *args)

    train.train = faulty
    return scaleproof.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
