"""Prints pip's option for PyTorch's index of CPU builds, on a machine without an NVIDIA GPU where that index responds quickly.

Prints nothing elsewhere: pip then installs torch from its own index, which may be a build with CUDA.
"""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request

INDEX = "https://download.pytorch.org/whl/cpu"
PATIENCE_S = 3


def is_reachable() -> bool:
    """Whether the index is reachable within a few seconds."""
    try:
        with urllib.request.urlopen(f"{INDEX}/torch/", timeout=PATIENCE_S) as response:  # noqa: S310 (a constant address)
            return bool(response.status == 200)
    except (OSError, ValueError, urllib.error.URLError):
        return False


if __name__ == "__main__" and shutil.which("nvidia-smi") is None and is_reachable():
    print(f"--extra-index-url {INDEX}")
