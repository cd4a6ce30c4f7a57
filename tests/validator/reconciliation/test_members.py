"""Measured ranks of each predicted rank class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.members import class_of_ranks
from tests.validator.reconciliation.runs import as_measured

Make = Callable[..., Scenario]


def pair(scenario: Scenario) -> tuple[Run, Run]:
    return predict(scenario), as_measured(scenario)


@pytest.mark.parametrize(
    ("strategy", "classes"),
    [
        ("{kind: data_parallel, workers: 4}", [0, 0, 0, 0]),
        ("{kind: pipeline, stages: 3, microbatches: 3}", [0, 1, 2]),
        ("{kind: hybrid, workers: 2, stages: 2, microbatches: 2}", [0, 1, 2, 3]),
        ("{kind: parameter_server, workers: 3, servers: 2}", [0, 0, 0, 1, 1]),
    ],
)
def test_rank_classes_contain_the_ranks_of_their_name(small: Make, strategy: str, classes: list[int]) -> None:
    predicted, measured = pair(small(f"strategy={strategy}"))
    found = class_of_ranks(predicted, measured).tolist()
    names = [(measured.rank_names[rank], predicted.rank_names[number]) for rank, number in enumerate(found)]
    assert np.bincount(found).tolist() == np.bincount(classes).tolist(), names
    for measured_name, predicted_name in names:
        assert ("server" in measured_name) == ("server" in predicted_name)
        if "stage" in predicted_name:
            stage = predicted_name.split("stage ")[1][0]
            assert f"stage {stage}" in measured_name


def test_a_straggler_has_its_own_class(small: Make) -> None:
    predicted, measured = pair(small("unevenness={stragglers: [{ranks: 2, slowdown: 2}]}"))
    alone = predicted.rank_names.index("worker 2")
    assert class_of_ranks(predicted, measured).tolist().count(alone) == 1
    assert class_of_ranks(predicted, measured)[2] == alone


def test_unknown_rank_names_are_assigned_to_the_default_class_or_none(small: Make) -> None:
    predicted, measured = pair(small())
    odd = replace(measured, rank_names=tuple(f"thing-{n}" for n in range(4)))
    assert class_of_ranks(predicted, odd).tolist() == [0, 0, 0, 0]
    assert class_of_ranks(predicted, replace(odd, rank_names=("server 0", *odd.rank_names[1:])))[0] == -1
