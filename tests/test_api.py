"""The package as scripts and notebooks use it: scenarios by name, path or mapping, and errors in a sentence."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scaleproof as sp

FIELDS: dict[str, Any] = {"model": "resnet50", "cluster": "p100-25gbe", "strategy": {"kind": "ddp", "dp": 8}, "gbs": 256}
YAML = "model: resnet50\ncluster: p100-25gbe\nstrategy: {kind: data_parallel, workers: 8}\nbatch: 256\n"


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    for name in sp.__all__:
        assert getattr(sp, name) is not None
    assert set(sp.__all__) <= set(dir(sp))


def test_a_name_a_path_a_mapping_and_a_scenario_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(YAML)
    expected = sp.predict(path).step_time_s
    for reference in (str(path), FIELDS, sp.load(path)):
        assert sp.predict(reference).step_time_s == expected


def test_overrides_are_a_mapping_or_texts() -> None:
    by_mapping = sp.load(FIELDS, {"strategy.workers": 4, "training.optimizer": "adam", "strategy.algorithm": "ring"})
    by_texts = sp.load(FIELDS, ["strategy.workers=4", "training.optimizer=adam", "strategy.algorithm=ring"])
    assert by_mapping == by_texts
    assert by_mapping.strategy.workers == 4


def test_a_plan_a_comparison_and_evidence_take_names() -> None:
    best = sp.plan(FIELDS, gpus=4, top=2).best[0].run
    assert best.compute_ranks == 4
    assert sp.compare(FIELDS, FIELDS | {"gbs": 512}).ratio > 1
    assert sp.evidence("llama-2-7b-fsdp-a100").runs
    assert sp.collective("all_reduce", 2**20, 4, "dgx-a100-40gb") > 0
    assert sp.model("llama3-8b").kind == "llama"


@pytest.mark.full
def test_a_plan_on_several_numbers_of_gpus_is_that_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = sp.plan(FIELDS, gpus=[8, 4, 97], top=2)
    assert [plan.gpus for plan in found.plans] == [4, 8, 97]
    path = tmp_path / "scenario.yaml"
    path.write_text(YAML)
    assert sp.main(["plan", str(path), "--gpus", "4,8,97", "--top", "2", "--json"]) == 0
    by_command = json.loads(capsys.readouterr().out)["plans"]
    assert [plan["best"][:1] for plan in by_command] == [
        [row.model_dump(mode="json") for row in plan.best[:1]] for plan in found.plans
    ]
    table = found.to_frame()
    assert table["gpus"].tolist() == [4, 8]
    assert table["step_time_s"].iloc[1] == pytest.approx(sp.predict(found.scenario(8)).step_time_s)
    assert found.plot().axes
    assert "<table>" in found._repr_html_()
    assert repr(found).splitlines()[1].startswith("97 GPUs: no plan: ")
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(sp.InputError, match="gpus: expected 4 or 8, which have plans, got 97"):
        found.scenario(97)
    for one in ([4], range(4, 5), np.array([4])):
        assert len(sp.plan(FIELDS, gpus=one, top=1).plans) == 1


def test_results_have_a_short_text_a_table_a_frame_and_a_figure() -> None:
    results: list[Any] = [
        sp.predict(FIELDS),
        sp.plan(FIELDS, gpus=4, top=2),
        sp.compare(FIELDS, FIELDS | {"gbs": 512}),
        sp.evidence("llama-2-7b-fsdp-a100"),
        sp.sweep({"scenario": FIELDS, "axes": {"strategy.workers": [2, 8]}}),
    ]
    for result in results:
        assert 1 <= len(repr(result).splitlines()) <= 6, repr(result)
        assert "<table>" in result._repr_html_()
        assert len(result.to_frame())
        assert result.plot().axes
        assert repr(pickle.loads(pickle.dumps(result))) == repr(result)
    assert results[0].timeline().axes
    with pytest.raises(FrozenInstanceError):
        results[0].samples = 1


def test_the_other_results_have_a_short_text() -> None:
    results = [
        sp.sensitivity(FIELDS),
        sp.crossover("resnet50-ring-p100", points=2, strategies=["ring"]),
        sp.goodput("llama3-405b-54-days", days=2),
        sp.elastic("netlab-host-returns"),
    ]
    for result in results:
        assert 2 <= len(repr(result).splitlines()) <= 4, repr(result)
        assert max(map(len, repr(result).splitlines())) < 130


@pytest.mark.full
def test_a_fit_predicts_its_scenario_and_writes_a_framework(tmp_path: Path) -> None:
    runs, out = Path("scenarios/demo/h100-runs.csv"), tmp_path / "mine.yaml"
    found = sp.fit([runs], "published:ultrascale-0360", out=out)
    assert len(found.given) == 3
    # the file has rounded constants
    predicted = sp.predict("published:ultrascale-0360", {"framework": str(out)})
    assert predicted.step_time_s == pytest.approx(found.target.after_s, rel=1e-4)
    assert 2 <= len(repr(found).splitlines()) <= 4


@pytest.mark.full
def test_a_captured_script_is_a_scenario(tmp_path: Path) -> None:
    command = ["python", "examples/captured/gan.py"]
    captured = sp.capture(command, tmp_path / "gan.zip", ranks=8, device="h100-80gb-sxm")
    assert sp.predict(captured, {"cluster": "dgx-h100"}).step_time_s > 0


def test_results_can_be_compared() -> None:
    run = sp.predict(FIELDS)
    assert run == sp.predict(FIELDS) == pickle.loads(pickle.dumps(run))
    assert run != sp.predict(FIELDS, gpus=4)
    plan = sp.plan(FIELDS, gpus=4, top=2)
    assert plan == plan
    assert plan != pickle.loads(pickle.dumps(plan))


def test_numbers_of_numpy_and_other_sequences_are_numbers_and_lists() -> None:
    expected = sp.predict(FIELDS, {"gbs": 128}, gpus=4)
    assert sp.predict(FIELDS, {"gbs": np.int64(128)}, gpus=np.int64(4)) == expected  # type: ignore[arg-type]
    for values in ((2, 4), range(2, 5, 2), np.array([2, 4])):
        assert len(sp.sweep(FIELDS, axes={"strategy.workers": values}).points) == 2
        assert len(sp.sweep(FIELDS, gpus=values).points) == 2
        assert sp.collective("all_reduce", np.float64(2**20), values, Path("scenarios/clusters/p100-25gbe.yaml")) > 0


def test_out_of_memory_comes_first() -> None:
    run = sp.predict(FIELDS | {"gbs": 8192})
    assert repr(run).startswith("OUT OF MEMORY")
    assert "font-weight:bold" in run._repr_html_()
    assert "fits with" in repr(run)


def test_a_sweep_continues_and_gives_the_scenario_of_its_best_point(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(YAML)
    finished: list[int] = []
    for _ in range(2):
        study = sp.sweep(path, gpus=[4, 8], out=tmp_path / "out", progress=finished.append)
    assert finished == [0, 2, 2]
    assert study.best is not None
    best = study.scenario(int(study.best["point"]))
    assert best.strategy.training_ranks == 8
    assert sp.predict(best).samples_per_s == pytest.approx(study.best["samples_per_s"])
    assert sp.predict(path, gpus=4).compute_ranks == 4


@pytest.mark.full
def test_reconcile_returns_both_runs(tmp_path: Path) -> None:
    found = sp.reconcile("single", overrides={"steps": 2}, out=tmp_path)
    assert found.to_frame()["measured_s"].notna().all()
    assert found.plot().axes
    assert sp.report(tmp_path).is_file()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: sp.predict(7), "expected the name of a scenario, a path, or a mapping with its fields; got int"),
        (lambda: sp.load(FIELDS, [8]), r"overrides are a mapping such as \{'strategy.workers': 8\} or texts; got int"),
        (lambda: sp.predict(sp.load(FIELDS), {"gbs": 8}), "overrides apply to a name, a path or a mapping"),
        (lambda: sp.predict(FIELDS, 8), r"overrides are a mapping such as \{'strategy.workers': 8\} or texts; got int"),
        (lambda: sp.predict(FIELDS, interval="no"), "interval: expected True or False, got 'no'"),
        (lambda: sp.predict(FIELDS, gpus=True), "gpus: expected a whole number from 1 on, got True"),
        (lambda: sp.predict(FIELDS, {"network.bandwidth": 1}), "did you mean 'cluster.network.bandwidth'?"),
        (lambda: sp.sweep(7), "expected the name of a study, a path, or a mapping with its fields; got int"),
        (lambda: sp.plan(FIELDS, gpus="64"), "gpus: expected a whole number from 1 on, got '64'"),
        (lambda: sp.plan(FIELDS, gpus=[64, 0]), "gpus: expected a whole number from 1 on, got 0"),
        (lambda: sp.plan(FIELDS, gpus=[]), r"gpus: expected a whole number such as 64, or several such as \[64, 128\], got an"),
        (lambda: sp.plan(FIELDS, objective="money"), "objective: expected one of time, cost, energy, tokens-per-dollar"),
        (lambda: sp.load("resnet"), "no scenario is called 'resnet'"),
        (lambda: sp.predict(FIELDS, {"gbs": object()}), "expected a number, a text, a list or a mapping, got <object"),
        (lambda: sp.sweep(FIELDS, axes=5), r"axes: expected values by field such as \{'strategy.workers': \[8, 16\]\}, got 5"),
        (lambda: sp.sweep(FIELDS, axes={5: [1]}), "axes: expected values by field"),
        (lambda: sp.sweep(FIELDS, gpus=16), r"gpus: expected a list of whole numbers such as \[8, 16\], got 16"),
        (lambda: sp.sweep(FIELDS, gpus=[4], out=5), "out: expected a path, got 5"),
        (lambda: sp.goodput(FIELDS, days="many"), "days: expected a number such as 30, got 'many'"),
        (lambda: sp.crossover("resnet50-ring-p100", 5), "x: expected a text, got 5"),
        (lambda: sp.crossover("resnet50-ring-p100", strategies="ring"), "strategies: expected a list of texts, got 'ring'"),
        (lambda: sp.crossover(5), "expected the name of a scenario, a path, or a mapping"),
        (lambda: sp.calibrate("x.yaml", models="gpt-mini"), "models: expected a list of texts, got 'gpt-mini'"),
        (lambda: sp.claims(5), "names: expected a text, got 5"),
        (lambda: sp.elastic(FIELDS), "events"),
        (lambda: sp.fit("runs.csv"), "runs: expected a list with at least one path, got 'runs.csv'"),
        (lambda: sp.capture("train.py", "x.zip", ranks=8), "command: expected a list of texts, got 'train.py'"),
        (lambda: sp.report(5), "folder: expected a path, got 5"),
        (lambda: sp.reconcile(), "give at least one scenario"),
        (lambda: sp.reconcile(FIELDS, on="mars"), "on: expected one of local, netlab, cluster, got 'mars'"),
        (lambda: sp.measure(FIELDS, on="mars"), "on: expected one of local, netlab, cluster, got 'mars'"),
        (lambda: sp.measure(FIELDS, options=5), "options: expected MeasureOptions, got 5"),
        (lambda: sp.calibrate(5), "out: expected a path, got 5"),
        (lambda: sp.calibrate("x.yaml", on="mars"), "on: expected one of local, netlab, cluster, got 'mars'"),
        (lambda: sp.collective(5, 8, 4, "p100-25gbe"), "op: expected a text, got 5"),
        (lambda: sp.collective("reduce", "1 GB", 4, "p100-25gbe"), "size_bytes: expected a number such as"),
        (lambda: sp.collective("reduce", 8, "4", "p100-25gbe"), "ranks: expected a number such as 64, or a list of ranks"),
        (lambda: sp.collective("reduce", 8, 4, 5), "cluster: expected a text, got 5"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(call: Any, problem: str) -> None:
    with pytest.raises(sp.ScaleproofError, match=problem):
        call()
