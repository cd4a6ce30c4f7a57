"""Tables of runs: columns, units, and what is refused, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.analysis.fit_record import FitRun
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting.observations import observed
from scaleproof.validator.fitting.observed_run import ObservedRun
from tests.validator.fitting.tables import REFERENCE

TOKENS = 256 * 4096


def read(path: Path, text: str, reference: str | None = REFERENCE) -> tuple[ObservedRun, ...]:
    file = path / "runs.csv"
    file.write_text(text, encoding="utf-8")
    return observed([file], reference, [], ImportNotes())


def test_columns_are_fields_by_their_usual_names(tmp_path: Path) -> None:
    head = "TP,pp,dp,micro batch,gbs,zero,recompute,gpus,memory,step_time,note"
    (run,) = read(tmp_path, f"{head}\n2,2,4,1,128,1,full,16,40 GiB,1500 ms,first\n")
    strategy = run.scenario.strategy
    assert (strategy.plan.tensor, strategy.stages, strategy.workers, strategy.microbatches) == (2, 2, 4, 32)
    assert run.scenario.total_samples == 128
    assert (run.scenario.training.zero, run.scenario.training.recompute.kind) == (1, "full")
    assert (run.step_time_s, run.memory_bytes) == (1.5, 40 * 2**30)
    assert run.place.endswith("runs.csv:2")


def test_the_number_of_gpus_gives_the_workers(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "tp,pp,gpus,mbs,step_time_s\n2,2,16,1,1.5\n")
    assert run.scenario.strategy.workers == 4


@pytest.mark.parametrize(
    ("column", "cell"),
    [("step_time_s", "2"), ("step_time_ms", "2000"), ("tokens_per_s", f'"{TOKENS // 2:,}"'), ("tokens/s", "524288 tokens/s"),
     ("tokens_per_s_per_gpu", "32768"), ("samples_per_s", "128")],
)  # fmt: skip
def test_rates_and_times_mean_the_same(tmp_path: Path, column: str, cell: str) -> None:
    (run,) = read(tmp_path, f"tp,pp,dp,mbs,{column}\n2,2,4,1,{cell}\n")
    assert run.step_time_s == pytest.approx(2.0)


def test_blank_cells_keep_the_scenario(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "tp,zero,step_time\n,,2 s\n\n")
    assert run.scenario.strategy.plan.tensor == 1
    assert run.scenario.training.zero == 1


def test_tables_of_published_runs_need_no_scenario(tmp_path: Path) -> None:
    from scaleproof.proof.published.calibrations import TABLE

    head, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    own = [line for line in lines if line.startswith(("ultrascale-0001,", "ultrascale-0014,"))]
    runs = read(tmp_path, "\n".join([head, *own]), reference=None)
    assert [run.scenario.name for run in runs] == ["ultrascale-0001", "ultrascale-0014"]
    assert runs[0].memory_bytes == pytest.approx(50.18 * 2**30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp,step_time\n1,2\n", "runs.csv:2: step_time: "),
        ("tp,step_time\n1,2 GB\n", "runs.csv:2: step_time: "),
        ("tp,step_time\n1,2 s\n1,0 s\n", "runs.csv:3: step_time is 0 s; give a number above zero"),
        ("tp,step_time\n1,-2 s\n", "runs.csv:2: step_time"),
        ("tp,step_time_s\n1,-2\n", "runs.csv:2: step_time_s is -2; give a number above zero"),
        ("tp,step_time_s\n1,fast\n", "runs.csv:2: step_time_s: cannot read 'fast' as a number without a unit"),
        ("tp,step_time_s\n1,nan\n", "runs.csv:2: step_time_s is nan"),
        ("tp,step_time,tokens_per_s\n1,2 s,100\n", "runs.csv:2: step_time and tokens_per_s are given"),
        ("tp,step_time\n1,\n", "runs.csv:2: no step time; give one of step_time"),
        ("tp,pp\n1,1\n", "runs.csv:1: no column has step times; give one of step_time"),
        ("tp,step_time\n", "runs.csv: no rows below its columns"),
        ("warp,step_time\n1,2 s\n", "runs.csv:1: the column 'warp' is no field of a scenario and no measurement"),
        ("tp,tp,step_time\n1,1,2 s\n", "runs.csv:1: the column 'tp' occurs twice"),
        ("tp,step_time\n3,2 s\n", "runs.csv:2: "),
        ("gpus,tp,dp,step_time\n8,1,16,2 s\n", "runs.csv:2: 8 GPUs contradict strategy.workers"),
        ("tp,memory,step_time\n1,40,2 s\n", "runs.csv:2: "),
        ("tp,memory,step_time\n1,0 GiB,2 s\n", "runs.csv:2: a memory of 0 bytes"),
        # milliseconds as seconds, seconds as milliseconds, MiB as GiB
        ("tp,step_time_s\n1,2\n2,2000\n", "runs.csv:3: a step of 33.3 min, but "),
        ("tp,step_time_ms\n1,2\n", "runs.csv:2: a step of 2.00 ms, but "),
        ("tp,memory_gib,step_time\n1,40960,2 s\n", "runs.csv:2: a memory of 40.0 TiB on a device with 79.1 GiB"),
    ],
)
def test_wrong_tables_are_refused_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert said in str(error.value)


def test_a_table_of_layouts_needs_a_scenario(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give it with --scenario"):
        read(tmp_path, "tp,step_time\n1,2 s\n", reference=None)


def test_runs_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    text = "tp,mbs,step_time\n1,1,2 s\n1,2,2 s\n1,1,3 s\n"
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert "runs.csv:2 and " in str(error.value)
    assert "runs.csv:4: the same configuration with steps of 2.00 s and 3.00 s" in str(error.value)


def test_repeats_within_the_noise_are_all_used(tmp_path: Path) -> None:
    assert len(read(tmp_path, "tp,mbs,step_time\n1,1,2 s\n1,1,2.1 s\n")) == 2


def test_a_run_that_measure_kept_is_named_by_its_scenario() -> None:
    def run(place: str) -> FitRun:
        return FitRun(place=place, layout="", gpus=2, group="", measured_s=1, before_s=1, after_s=1, low_s=1, high_s=1)

    assert run("out/ring-2/measured").short_place == "ring-2"
    assert run("out/runs.csv:3").short_place == "runs.csv:3"
