"""Constants of frameworks, found by `python benchmarks/frameworks.py` on the rows named here, which no score counts with them.

Rows are of two nodes or fewer where their set has such, else of its fewest: what these teach is tried on the larger ones.
Of a set with many such rows they are the middles of equal parts (15 of vtrain_single, 5 of vtrain_multi, 20 of llm_foundry), in
order of hidden width, tensor parallelism, microbatch, stages, layers, devices and id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from validator.frameworks import Constants


class Calibration(NamedTuple):
    """rows: ids in scenarios/published/transformer_training.csv."""

    rows: tuple[str, ...]
    constants: Constants = Constants()


def _rows(prefix: str, numbers: str) -> tuple[str, ...]:
    return tuple(f"{prefix}-{number}" for number in numbers.split())


CALIBRATIONS: Final[Mapping[str, Calibration]] = {
    "Megatron-LM 2021": Calibration(_rows("megatron_sc21_t1", "0000 0002"), Constants(kernels=1.041)),
    "Megatron-LM 2022": Calibration(_rows("korthikanti22", "0000 0001"), Constants(kernels=0.99)),
    "Megatron-DeepSpeed": Calibration(
        _rows("vtrain_single", "0022 0260 0354 0535 0736 0766 0811 0855 1095 1108 1156 1204 1210 1332 1380")
        + _rows("vtrain_multi", "0003 0011 0019 0022 0024"),
        Constants(kernels=0.97, host=0.988),
    ),
    "Megatron-DeepSpeed 2022": Calibration(_rows("bigscience", "0025 0031 0036"), Constants(kernels=1.209)),
    "llm-foundry": Calibration(
        _rows(
            "llm_foundry",
            "0020 0038 0088 0107 0110 0114 0121 0126 0132 0162 0169 0185 0196 0221 0227 0242 0255 0266 0276 0296",
        ),
        Constants(kernels=1.059, host=1.03, microbatch_s=0.94e-3),
    ),
    "torchtitan": Calibration(_rows("torchtitan", "0000 0001 0002 0006"), Constants(kernels=1.065)),
    "Megatron-Core": Calibration(_rows("simumax_b200", "0001 0004 0011 0013"), Constants(kernels=1.119)),
    "NeMo": Calibration(_rows("nemo", "0030") + _rows("megatron_bridge", "0010"), Constants(kernels=1.075)),
}
