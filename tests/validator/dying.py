"""The command line, whose process is killed when it reaches a function: `dying.py MODULE.NAME TIMES ARGUMENT…`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import scaleproof


def main() -> int:
    """Makes the named function kill this process at its N-th call."""
    module_name, _, name = sys.argv[1].rpartition(".")
    module, times = importlib.import_module(module_name), int(sys.argv[2])
    function, calls = getattr(module, name), []

    def deadly(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == times:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(module, name, deadly)
    return scaleproof.main(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
