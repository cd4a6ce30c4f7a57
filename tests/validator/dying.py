"""The command line, whose process is killed when it comes to a place: `dying.py MODULE.NAME TIMES ARGUMENT…`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import scaleproof


def main() -> int:
    """The function of that name kills this process when it is called for the last of so many times."""
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
