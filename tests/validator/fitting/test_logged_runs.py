"""Runs in logs and results folders: the configuration that a log reports, and what it lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.validator import results
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting.observations import observed
from tests.validator.fitting.tables import REFERENCE

ARGUMENTS = (
    "[default0]:  world_size ...................................... 16",
    "[default0]:  tensor_model_parallel_size ...................... 2",
    "[default0]:  pipeline_model_parallel_size .................... 2",
    "[default0]:  micro_batch_size ................................ 1",
)
ITERATION = " iteration {:8}/     100 | elapsed time per iteration (ms): 1500.0 | global batch size:   256 | lm loss: 6.0E+00 |"


def log(path: Path, *arguments: str) -> Path:
    file = path / "train.log"
    file.write_text("\n".join([*arguments, *(ITERATION.format(number) for number in range(1, 11))]) + "\n", encoding="utf-8")
    return file


def test_a_log_changes_the_scenario_to_what_it_reports(tmp_path: Path) -> None:
    notes = ImportNotes()
    (run,) = observed([log(tmp_path, *ARGUMENTS)], REFERENCE, [], notes)
    strategy = run.scenario.strategy
    assert (strategy.plan.tensor, strategy.stages, strategy.workers) == (2, 2, 4)
    assert run.scenario.samples_per_worker // strategy.microbatches == 1
    assert run.step_time_s == pytest.approx(1.5)
    assert any("does not report strategy.context, model.sequence; taken from" in line for line in notes.lines())


def test_a_log_needs_the_models_shape(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train.log: a log does not describe the model; give a scenario of the job"):
        observed([log(tmp_path, *ARGUMENTS)], None, [], ImportNotes())


def test_a_log_of_a_job_that_cannot_be(tmp_path: Path) -> None:
    wrong = (*ARGUMENTS[:1], ARGUMENTS[1].replace(" 2", " 3"), *ARGUMENTS[2:])
    with pytest.raises(InputError, match=r"train.log: the job of the log is no valid scenario with published:ultrascale-0072"):
        observed([log(tmp_path, *wrong)], REFERENCE, [], ImportNotes())


def test_a_file_without_times_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"notes.txt: no line reports the time of an iteration"):
        observed([file], REFERENCE, [], ImportNotes())


def test_rows_of_a_table_may_name_logs(tmp_path: Path) -> None:
    log(tmp_path, *ARGUMENTS)
    table = tmp_path / "runs.csv"
    table.write_text("tp,pp,gpus,mbs,log\n2,2,16,1,train.log\n", encoding="utf-8")
    (run,) = observed([table], REFERENCE, [], ImportNotes())
    assert run.step_time_s == pytest.approx(1.5)
    table.write_text("tp,pp,gpus,mbs,log\n4,2,16,1,train.log\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"runs.csv:2: .*train.log:2: the job has tensor parallelism over 2"):
        observed([table], REFERENCE, [], ImportNotes())


def test_results_folders_have_their_scenarios(tmp_path: Path) -> None:
    scenario = load(REFERENCE)
    measured = replace(timed(scenario), origin="measured")
    results.keep(measured, scenario, results.folder_of(tmp_path, scenario))
    (found,) = observed([tmp_path], None, [], ImportNotes())
    assert found.scenario.strategy == scenario.strategy
    assert found.step_time_s == measured.step_time_s


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no measured run; give a folder that measure or reconcile wrote"):
        observed([tmp_path], REFERENCE, [], ImportNotes())
