"""Published training and fine-tuning runs by their ids, as scenarios."""

from __future__ import annotations

from scaleproof.simulator.published.fine_tuning import fine_tuning_run
from scaleproof.simulator.published.tables import find_row
from scaleproof.simulator.published.training_runs import row_scenario
from scaleproof.simulator.scenario.dump import dump


def text_of(reference: str) -> str:
    """YAML of the scenario of `published:ROW-ID`. Raises NotFoundError for an unknown id, InputError for a row without run."""
    row = find_row(reference)
    found = fine_tuning_run(row) if row["method"] else row_scenario(row)
    lines = [f"# {row['model']} on {row['gpus']} {row['gpu']}, {row['software']}; {row['source']}"]
    if row["step_time_s"]:
        lines.append(f"# measured: {row['step_time_s']} s {row['step_is'] or 'a step'}")
    if found.assumed:
        lines.append(f"# not stated by the source, and assumed: {', '.join(found.assumed)}")
    return "\n".join([*lines, dump(found.scenario, by_name=True)])
