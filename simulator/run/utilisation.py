"""Utilisation of the devices of a run: model and hardware FLOPs utilisation (MFU, HFU)."""

from __future__ import annotations


def flops_utilisation(flops: float | None, step_time_s: float, ranks: int, peak_flops: float | None) -> float | None:
    """FLOPs of a step as a share of those that all training ranks could compute in its time; None where one is not known.

    With the FLOPs of the passes this is the model FLOPs utilisation (MFU; arXiv 2204.02311, appendix B), with those of
    recomputation added the hardware FLOPs utilisation (HFU; arXiv 2205.05198, section 6.3). peak_flops: of a rank's device.
    """
    possible_flops = ranks * (peak_flops or 0.0) * step_time_s
    return None if flops is None or possible_flops == 0 else flops / possible_flops
