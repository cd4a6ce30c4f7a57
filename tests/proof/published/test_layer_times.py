from __future__ import annotations

from itertools import combinations

import pytest

from scaleproof.proof.published.layer_times import layer_s, predict
from scaleproof.proof.published.score import score
from scaleproof.simulator.common import catalog
from scaleproof.simulator.published.tables import read_table

TABLE = catalog.ROOT / "published" / "layer_times.csv"


def rows() -> list[dict[str, str]]:
    return [dict(row) for row in read_table(TABLE)[1]]


def setting(recompute: str, sequence: str) -> dict[str, str]:
    return next(row for row in rows() if (row["recompute"], row["sequence_parallel"]) == (recompute, sequence))


def test_every_row_is_scored_within_the_bound() -> None:
    found = score(TABLE)
    assert found.table == "layer_times"
    assert found.calibration == ()
    assert {name.rpartition(" ")[2] for name in found.sets} == {"forward", "backward"}
    for each in found.sets.values():
        assert (each.rows, each.scored, each.skipped) == (5, 5, {})
        assert each.mean is not None
        assert each.mean < 0.08
        assert each.order_right == 1


def test_predicted_ratios_of_settings_equal_measured_ones() -> None:
    """Whole passes, as the source compares them."""
    predicted = [sum(layer_s(row)) for row in rows()]
    measured = [float(row["forward_ms"]) + float(row["backward_ms"]) for row in rows()]
    for i, j in combinations(range(len(measured)), 2):
        assert predicted[i] / predicted[j] == pytest.approx(measured[i] / measured[j], rel=0.05)


def test_recomputation_takes_its_forward_time_again() -> None:
    (forward_s, kept_s), (_, scores_s), (_, all_s) = (layer_s(setting(kind, "no")) for kind in ("none", "selective", "full"))
    # the host issues a little more, most of which the device hides
    assert all_s == pytest.approx(kept_s + forward_s, rel=1e-3)
    assert kept_s < scores_s < kept_s + 0.5 * forward_s


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"forward_ms": ""}, "no time, or no readable layer"),
        ({"hidden": "many"}, "no time, or no readable layer"),
        ({"heads": "7"}, "no time, or no readable layer"),
        ({"gpu": "GTX-970"}, "no cluster for GPU: GTX-970"),
        ({"precision": "int4"}, "unknown precision: int4"),
        ({"recompute": "some"}, "unknown recomputation: some"),
        ({"tp": "64", "heads": "32"}, ""),
    ],
)
def test_rows_that_cannot_be_predicted_are_skipped_with_their_reason(change: dict[str, str], reason: str) -> None:
    found = predict(setting("none", "no") | change)
    assert len(found) == 2
    assert all(each.skipped and each.skipped.startswith(reason) for each in found)
