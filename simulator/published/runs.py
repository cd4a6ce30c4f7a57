"""Published runs of training by their ids, as scenarios."""

from __future__ import annotations

from collections.abc import Callable

from scaleproof.simulator.published.fine_tuning import FineTuningRun, fine_tuning_run
from scaleproof.simulator.published.recommenders import recommender_run
from scaleproof.simulator.published.tables import Row, find_row
from scaleproof.simulator.published.training_runs import RowScenario, row_scenario
from scaleproof.simulator.published.vision import vision_run
from scaleproof.simulator.scenario.dump import dump


def text_of(reference: str) -> str:
    """YAML of the scenario of `published:ROW-ID`. Raises NotFoundError for an unknown id, InputError for a row without run."""
    row = find_row(reference)
    # columns that one table has and no other
    readers: dict[str, Callable[[Row], RowScenario | FineTuningRun]] = {
        "placement": recommender_run,
        "method": fine_tuning_run,
        "image_size": vision_run,
    }
    found = next((read for column, read in readers.items() if row[column]), row_scenario)(row)
    lines = [f"# {row['model']} on {row['gpus']} {row['gpu']}, {row['software']}; {row['source']}"]
    if row["step_time_s"]:
        lines.append(f"# measured: {row['step_time_s']} s {row['step_is'] or 'a step'}")
    if found.assumed:
        lines.append(f"# not stated by the source, and assumed: {', '.join(found.assumed)}")
    return "\n".join([*lines, dump(found.scenario, by_name=True)])
