"""A rank blames its peers only for what they cause, and leaves a GPU as it found it."""

from __future__ import annotations

import pytest
import torch

from scaleproof.validator.launch import rank


@pytest.mark.parametrize(
    ("text", "by_peer"),
    [
        ("NCCL error: remote process exited or there was a network error, ncclRemoteError", True),
        ("[gloo] connection closed by peer", True),
        ("NCCL error in: ProcessGroupNCCL.cpp, invalid usage, ncclInvalidUsage: Duplicate GPU detected", False),
        ("NCCL error: ncclInvalidArgument: wrong type", False),
        ("NCCL error: ncclUnhandledCudaError: Call to CUDA function failed", False),
        ("CUDA out of memory", False),
    ],
)
def test_own_faults_are_not_those_of_peers(text: str, by_peer: bool) -> None:
    assert rank.is_communication(RuntimeError(text)) is by_peer
    with pytest.raises(ValueError, match="training failed") as raised:
        raise ValueError("training failed") from RuntimeError(text)
    assert rank.is_communication(raised.value) is by_peer


@pytest.mark.parametrize("has_gpu", [True, False])
def test_leaving_frees_the_memory_of_a_gpu_for_the_next_scenario(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    rank.leave()
    assert freed == [True] * has_gpu
