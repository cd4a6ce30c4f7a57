"""Imported by each Python process that has this folder on its path: ranks that it starts compute on GPUs that do not exist."""

import sys

from tests.validator.gpus.fake_machine import Patches

sys.meta_path.insert(0, Patches())
