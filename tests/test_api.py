"""The package as scripts and notebooks use it: scenarios by name, path or mapping, and errors in a sentence."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

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
        (lambda: sp.plan(FIELDS, objective="money"), "objective: expected one of time, cost, energy, tokens-per-dollar"),
        (lambda: sp.load("resnet"), "no scenario is called 'resnet'"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(call: Any, problem: str) -> None:
    with pytest.raises(sp.ScaleproofError, match=problem):
        call()
