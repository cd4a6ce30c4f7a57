"""Constants of frameworks, found by `python benchmarks/frameworks.py` on the rows named here, which no score counts with them.

Where a set has rows of two nodes or fewer, constants come from these.
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
    "Megatron-LM 2021": Calibration(_rows("megatron_sc21_t1", "0000 0002")),
    "Megatron-LM 2022": Calibration(_rows("korthikanti22", "0000 0001")),
    "Megatron-DeepSpeed": Calibration(
        _rows(
            "vtrain_single",
            "0083 0451 0492 0598 0708 0766 0782 0800 0845 0855 "
            "0882 1026 1038 1136 1190 1203 1227 1244 1258 1364",
        )
    ),
    "Megatron-DeepSpeed 2022": Calibration(_rows("bigscience", "0025 0031 0036")),
    "llm-foundry": Calibration(
        _rows(
            "llm_foundry",
            "0053 0068 0109 0112 0121 0133 0195 0206 0224 0231 "
            "0242 0243 0244 0247 0252 0255 0268 0278 0286 0298",
        )
    ),
    "torchtitan": Calibration(_rows("torchtitan", "0000 0001 0002 0006")),
    "Megatron-Core": Calibration(_rows("simumax_b200", "0001 0004 0011 0013")),
    "NeMo": Calibration(_rows("nemo", "0030") + _rows("megatron_bridge", "0010")),
}
