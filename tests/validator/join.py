"""Script that torchrun starts in a test: measures a scenario file and writes the Run of this rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scaleproof.simulator.run.files import save
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.measure import measure

if __name__ == "__main__":
    scenario_file, folder = map(Path, sys.argv[1:])
    save(measure(load(scenario_file)), folder / os.environ["RANK"])
