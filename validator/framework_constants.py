"""Constants of frameworks, found by `python benchmarks/frameworks.py` on the rows named here, which no score counts with them.

Rows are of two nodes or fewer where their set has such, else its smallest: what these teach is tried on the larger ones.
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
        _rows("vtrain_single", "0083 0451 0492 0708 0782 0845 0855 0882 1026 1136 1190 1227 1244 1258 1364")
        + _rows("vtrain_multi", "0001 0003 0007 0011 0019"),
        Constants(kernels=1.0, host=1.217),
    ),
    "Megatron-DeepSpeed 2022": Calibration(_rows("bigscience", "0025 0031 0036"), Constants(kernels=1.215)),
    "llm-foundry": Calibration(
        _rows(
            "llm_foundry",
            "0053 0068 0109 0112 0121 0133 0195 0206 0224 0231 0242 0243 0244 0247 0252 0255 0268 0278 0286 0298",
        ),
        Constants(kernels=1.043, host=1.099, microbatch_s=2.1e-3),
    ),
    "torchtitan": Calibration(_rows("torchtitan", "0000 0001 0002 0006"), Constants(kernels=1.065)),
    "Megatron-Core": Calibration(_rows("simumax_b200", "0001 0004 0011 0013"), Constants(kernels=1.119)),
    "NeMo": Calibration(_rows("nemo", "0030") + _rows("megatron_bridge", "0010"), Constants(kernels=1.075)),
}
