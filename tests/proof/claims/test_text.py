"""Texts of verdicts."""

from __future__ import annotations

from pathlib import Path

from scaleproof.commands.text.claims import describe
from scaleproof.proof.claims.evaluate import evaluate
from scaleproof.proof.claims.result import Result, verdict
from tests.proof.claims.example import claim


def test_points_where_the_claim_does_not_apply_are_reported(tmp_path: Path) -> None:
    axis = {"name": "bandwidth", "unit": "Gbit/s", "set": {"cluster.network.bandwidth": "$x Gbit/s"}, "values": [1, 1000]}
    slow, fast = (point.values["ring"] for point in evaluate(claim(tmp_path, axis=axis)).points)
    where = {"of": "ring", "at_most": (slow + fast) / 2}
    found = evaluate(claim(tmp_path, axis=axis, test={"of": "one worker", "at_least": 0.5, "where": where}))
    assert verdict(found) == "True, tested at bandwidth 1 Gbit/s"


def test_summary_of_several_claims_counts_verdicts(tmp_path: Path) -> None:
    found = claim(tmp_path, axis={"name": "bandwidth", "values": [1]})
    one = Result(found, evaluate(found), None)
    assert describe([one, one], at_length=False).endswith(
        "2 claims: 0 true, 0 depend, 2 false; 0 measured, 0 of these as predicted"
    )
    assert "claims:" not in describe([one], at_length=True)


def test_what_is_trained_is_named(tmp_path: Path) -> None:
    axis = {"name": "bandwidth", "values": [1]}
    named = claim(tmp_path, axis=axis, scenario="resnet50-ring-p100", set={"strategy.workers": 4})
    inline = claim(tmp_path, axis=axis)
    texts = [describe([Result(one, evaluate(one), None)], at_length=True) for one in (named, inline)]
    assert "    scenario: resnet50-ring-p100 with strategy.workers=4\n" in texts[0]
    assert "    scenario: in the claim's file\n" in texts[1]


def test_frameworks_are_named_with_the_lines_that_they_train(tmp_path: Path) -> None:
    axis = {"name": "bandwidth", "values": [1]}
    same, other = claim(tmp_path, axis=axis), claim(tmp_path, axis=axis)
    other.lines["ring"].set["framework"] = "horovod"
    texts = [describe([Result(one, evaluate(one), None)], at_length=True) for one in (same, other)]
    assert "    framework: pytorch-ddp, by default\n" in texts[0]
    assert "    framework: horovod (ring); pytorch-ddp, by default (one worker)\n" in texts[1]
