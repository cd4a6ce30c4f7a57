"""Predictions in the form of measurements: every rank separately, as in measured runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scaleproof.simulator.common.spans import Spans
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.members import class_of_ranks
from scaleproof.validator.record.assemble import rank_names


def as_measured(scenario: Scenario) -> Run:
    """The prediction of `scenario` with a copy of its class's spans for each rank, slightly shifted in time."""
    run = predict(scenario)
    assert run.spans is not None
    named = replace(run, origin="measured", rank_names=rank_names(scenario.strategy), spans=None, prediction_interval_s=None)
    class_of = class_of_ranks(run, named)
    blocks = []
    for rank, number in enumerate(class_of.tolist()):
        own = run.spans.where(run.spans.rank == number)
        blocks.append(replace(own, rank=np.full_like(own.rank, rank)))
    spans = Spans.of({name: np.concatenate([getattr(block, name) for block in blocks]) for name in run.spans.columns()})
    return replace(named, spans=spans)
