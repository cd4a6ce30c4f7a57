"""Builds of PyTorch that captures were not written for are refused in a sentence."""

from __future__ import annotations

import pytest
import torch

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.backend import abi


def test_a_build_with_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(RunError, match=r"is built for GPUs.*install PyTorch's CPU build"):
        abi.install_device(8, 0)


def test_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "_REGISTRY", "_ZN3c104impl7missingE")
    with pytest.raises(RunError, match=r"lacks what a capture replaces.*install PyTorch's CPU build"):
        abi.install_device(8, 0)


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(RunError, match="captures run on Linux"):
        abi.check_build()
