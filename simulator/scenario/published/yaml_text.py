"""A published training run as the YAML of its scenario."""

from __future__ import annotations

from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.published.tables import find_row
from scaleproof.simulator.scenario.published.transformer import described


def text_of(reference: str) -> str:
    """YAML of the scenario of `published:ROW-ID`. Raises NotFoundError for an unknown id, InputError for a row without run."""
    row = find_row(reference)
    found = described(row)
    lines = [f"# {row['model']} on {row['gpus']} {row['gpu']}, {row['software']}; {row['source']}"]
    if row["step_time_s"]:
        lines.append(f"# measured: {row['step_time_s']} s a step")
    if found.assumed:
        lines.append(f"# not stated by the source, and assumed: {', '.join(found.assumed)}")
    return "\n".join([*lines, dump(found.scenario, by_name=True)])
