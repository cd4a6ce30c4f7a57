"""Published scaling of data-parallel training, predicted: a set's run on the fewest GPUs tells what one device does, the model
tells the rest.

Rows that differ in the number of GPUs alone are one series. Its base, the run on the fewest, says how long one device computes
for a step: as long as makes the prediction of the base what was measured, communication included. The base is not scored.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import ValidationError

from simulator import library
from simulator.cluster import Cluster
from simulator.cluster.device import Optimizer, Precision
from simulator.errors import InputError, ScaleproofError
from simulator.memory import memory
from simulator.predict import predict as predict_scenario
from simulator.scenario import Scenario, load_cluster, load_model
from validator.published import Prediction, read

Row = Mapping[str, str]

_SERIES: Final = ("source_set", "model", "cluster", "gpu", "batch_per_gpu", "seq_len", "precision", "software")
# Systems that no shipped file is called after, by name and GPU.
_SYSTEMS: Final = {
    ("DGX-1", "V100-16GB"): "dgx1-v100-16gb", ("DGX-1", "V100-32GB"): "dgx1-v100", ("DGX A100", "A100-40GB"): "dgx-a100-40gb",
    ("DGX A100", "A100-80GB"): "dgx-a100", ("DGX A100 cluster", "A100-80GB"): "dgx-a100", ("AWS p2.8xlarge", "K80"): "ec2d",
}  # fmt: skip
_PRECISIONS: Final = {"mixed fp16": "fp16", "mixed bf16": "bf16", "amp": "fp16"}
_LARGEST_BATCH: Final = 1024
CALIBRATION: Final[tuple[str, ...]] = ()
