from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.reconciliation.jobs import contradictions, log_run, logs
from scaleproof.validator.reconciliation.jobs.log_formats import (
    DEEPSPEED,
    FORMATS,
    LIGHTNING,
    MAXTEXT,
    MEGATRON,
    NANOTRON,
    NEMO,
    TORCHTITAN,
    TRAINER,
    LogFormat,
)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load(
        {
            "name": "job",
            "model": "llama-3-8b",
            "cluster": "dgx-h100",
            "strategy": {"kind": "data_parallel", "workers": 64},
            "batch": {"total": 256},
            "training": {"precision": "bf16", "zero": 3, "optimizer": "adam"},
        },
        [],
    )


def _write(folder: Path, *lines: str) -> Path:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def _run(path: Path, scenario: Scenario, notes: ImportNotes | None = None) -> Run:
    notes = notes or ImportNotes()
    log = logs.read(path, None, notes)
    contradictions.check(log, scenario)
    return log_run.run_of(log, scenario, notes)


# 256 samples of 8192 tokens in 5.4 s on 64 GPUs are 6,068 tokens/s per GPU and 47.4 samples/s
SAMPLES = [
    (TORCHTITAN, 256 * 8192 / 64 / 6100), (MEGATRON, 5.4), (NEMO, 5.4), (DEEPSPEED, 256 / 47.4), (TRAINER, 1 / 0.185),
    (NANOTRON, 5.4), (LIGHTNING, 1 / 0.19), (MAXTEXT, 5.4),
]  # fmt: skip


@pytest.mark.parametrize(("one", "step_s"), SAMPLES, ids=lambda value: value.key if isinstance(value, LogFormat) else "")
def test_the_sample_of_each_format_gives_its_step_time(
    one: LogFormat, step_s: float, tmp_path: Path, scenario: Scenario
) -> None:
    path = _write(tmp_path, "starting", one.sample)
    log = logs.read(path, None, ImportNotes())
    assert log.software == one.name
    run = _run(path, scenario)
    assert run.step_time_s == pytest.approx(step_s)
    assert run.origin == "measured"
    assert run.tokens_per_s == pytest.approx(256 * 8192 / step_s)
    if one in (TORCHTITAN, DEEPSPEED):
        assert run.memory_bytes_per_rank == 40.5 * 2**30
    assert sum(other.marks.search(one.sample) is not None for other in FORMATS) == 1


def test_warm_up_is_left_out_and_slow_iterations_do_not_count(tmp_path: Path, scenario: Scenario) -> None:
    seconds = [30.0, 9.0, *[5.0] * 10, 12.0, *[5.0] * 10]
    line = " iteration {:8}/     100 | elapsed time per iteration (ms): {:.1f} | lm loss: {:.3E} |"
    notes = ImportNotes()
    path = _write(tmp_path, *(line.format(number, 1e3 * s, 9 - number / 10) for number, s in enumerate(seconds, 1)))
    run = _run(path, scenario, notes)
    assert run.step_time_s == pytest.approx(5.0)
    assert len(run.step_times_s) == 21
    assert len(run.losses) == 21
    assert run.step_time_interval_s is not None
    assert "the first 2 (to iteration 2) left out as warm-up" in notes.lines()[0]
    assert "1 of 21 records took more than 1.5 times the median" in notes.lines()[1]


def _megatron_log(folder: Path, seconds: Sequence[float]) -> Path:
    line = " iteration {:8}/     200 | elapsed time per iteration (ms): {:.1f} | lm loss: 1.0 |"
    return _write(folder, *(line.format(number, 1e3 * step_s) for number, step_s in enumerate(seconds, 1)))


def test_steps_that_become_slower_are_no_single_regime(tmp_path: Path, scenario: Scenario) -> None:
    jitter = [0.005 * (number % 3 - 1) for number in range(120)]
    seconds = [(0.60 if number < 60 else 0.75) + jitter[number] for number in range(120)]
    (warning,) = _run(_megatron_log(tmp_path, seconds), scenario).warnings
    assert warning.startswith("since iteration 61 steps take 750 ms, before 600 ms (+25.0 %)")


@pytest.mark.parametrize(
    "seconds",
    [
        [0.6 + 0.02 * (number % 5) for number in range(120)],
        [0.6 if number % 20 else 1.9 for number in range(1, 121)],
        [2.0, 1.2, *[0.6] * 20],
    ],
    ids=["noise", "checkpoints", "warm-up"],
)
def test_noise_checkpoints_and_warm_up_are_no_change_of_regime(
    seconds: Sequence[float], tmp_path: Path, scenario: Scenario
) -> None:
    assert not _run(_megatron_log(tmp_path, seconds), scenario).warnings


def test_lines_of_several_ranks_count_once_in_spite_of_colours(tmp_path: Path, scenario: Scenario) -> None:
    line = "[rank{}]:[titan] 2026-01-05 - root - INFO - \x1b[31mstep: {:2}  \x1b[32mloss:  6.1  \x1b[34mtps: {:,}\x1b[0m"
    path = _write(tmp_path, *(line.format(rank, step, 6000 + rank) for step in range(1, 11) for rank in range(3)))
    run = _run(path, scenario)
    assert len(run.step_times_s) == 9
    assert run.step_time_s == pytest.approx(256 * 8192 / 64 / 6001)


def test_progress_bars_of_evaluations_do_not_count(tmp_path: Path, scenario: Scenario) -> None:
    bars = [f"  {n}%|#  | {n}/100 [00:10<01:00,  {5.0 if n > 1 else 9.0:.2f}s/it]" for n in range(1, 31)]
    path = _write(tmp_path, "\r".join(bars), "100%|##| 8/8 [00:10<00:00,  1.25it/s]", "{'loss': 6.5, 'epoch': 0.3}")
    assert _run(path, scenario).step_time_s == pytest.approx(5.0)


_DOTS = "." * 30


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"world_size {_DOTS} 32", r"train\.log:1: the job has 32 GPUs, job describes 64; add --set gpus=32"),
        (f"global_batch_size {_DOTS} 512", "a global batch of 512 sequences, job describes 256; add --set batch"),
        (f"seq_length {_DOTS} 4096", "sequences of 4096 tokens, job describes 8192; add --set model.sequence=4096"),
        (f"tensor_model_parallel_size {_DOTS} 4", "tensor parallelism over 4, job describes 1; set strategy.tensor=4"),
    ],
)
def test_contradictions_say_what_to_change(line: str, message: str, tmp_path: Path, scenario: Scenario) -> None:
    with pytest.raises(InputError, match=message):
        _run(_write(tmp_path, line, MEGATRON.sample.replace("| global batch size:   256 ", "")), scenario)


@pytest.mark.parametrize(
    "mesh",
    [
        "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=16, cp=1, tp=1, ep=1",
        "Building 2-D device mesh with ['dp_replicate', 'dp_shard'], [2, 16]",
    ],
)
def test_the_mesh_of_torchtitan_gives_the_number_of_gpus(mesh: str, tmp_path: Path, scenario: Scenario) -> None:
    with pytest.raises(InputError, match="the job has 32 GPUs"):
        _run(_write(tmp_path, mesh, TORCHTITAN.sample), scenario)


@pytest.mark.parametrize(
    ("head", "rows", "step_s"),
    [
        ("_step,_runtime,throughput(tps),loss_metrics/global_avg_loss", ["1,9,600,11", "2,15,6400,10", "3,21,6400,9"], 5.12),
        ("Step,run a - train_step_timing in s,run a - train_step_timing in s__MIN", ["0,30,1", "1,5,1", "2,5,1"], 5.0),
        ("Step,iteration-time,lm loss", ["1,30,9", "2,5,8", "3,5,7"], 5.0),
        ("Wall time,Step,Value", [f"{1.7e9 + 50 * number},{10 * number},9" for number in range(4)], 5.0),
        ("_step,_timestamp,train/loss", ["0,100,9", "10,150,8", "20,200,8", "30,250,7"], 5.0),
    ],
)
def test_tables_of_metrics_give_step_times(
    head: str, rows: list[str], step_s: float, tmp_path: Path, scenario: Scenario
) -> None:
    assert _run(_write(tmp_path, head, *rows), scenario).step_time_s == pytest.approx(step_s)


def test_unusable_logs_are_refused_in_one_line(tmp_path: Path, scenario: Scenario) -> None:
    with pytest.raises(InputError, match=r"no line reports the time of an iteration; expected a log of torchtitan") as error:
        _run(_write(tmp_path, "nothing here"), scenario)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="columns of several runs"):
        _run(_write(tmp_path, "Step,a - tps,b - tps", "1,2,3"), scenario)


def test_flops_that_contradict_the_model_are_noted(tmp_path: Path, scenario: Scenario) -> None:
    notes = ImportNotes()
    _run(_write(tmp_path, *[MEGATRON.sample.replace("412.5", "41.25")] * 2), scenario, notes)
    assert any("times the FLOPs of the scenario's step" in line for line in notes.lines())


def test_nanotron_reports_its_degrees_and_numbers_with_prefixes(tmp_path: Path) -> None:
    arguments = (
        "Config(parallelism=ParallelismArgs(dp=8, pp=2, tp=4, pp_engine=None), tokens=TokensArgs(sequence_length=8192, "
        "micro_batch_size=2, batch_accumulation_per_replica=16))"
    )
    path = _write(
        tmp_path, arguments, NANOTRON.sample, " Memory usage: 1.0MiB. Peak allocated: 2048.0MiB Peak reserved: 4096MiB"
    )
    log = logs.read(path, None, ImportNotes())
    facts = {name: fact.value for name, fact in log.facts.items()}
    assert facts == {"global_batch": 256, "microbatch": 2, "sequence": 8192, "tensor": 4, "stages": 2, "gpus": 64}
    assert log.records[0]["tokens_per_s"] == 194e3
    assert log.memory_bytes == 2 * 2**30
