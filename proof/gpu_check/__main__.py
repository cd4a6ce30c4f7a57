"""python -m scaleproof.proof.gpu_check: measures a machine's GPUs and training on them, and compares it with
predictions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scaleproof.proof.gpu_check import dependencies
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.file_lock import locked_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check and returns the exit code. Errors of this project are printed as one line each on stderr."""
    parser = argparse.ArgumentParser(prog="gpucheck", description="Measure this machine's GPUs and check predictions on them.")
    parser.add_argument("--out", type=Path, default=Path("out/gpu-check"), metavar="DIR", help="folder for results")
    parser.add_argument("--wheels", type=Path, default=Path("wheels"), metavar="DIR", help="wheels of missing packages")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="when to interrupt measuring (by size of the machine)")
    parser.add_argument("--dry-run", action="store_true", help="run all in tiny sizes on the CPU, to see that it works")
    parser.add_argument("--again", action="store_true", help="replace the results of an earlier check")
    options = parser.parse_args(arguments)
    try:
        # commands lock the folder itself
        with locked_file(options.out / "check", "a GPU check"):
            site = dependencies.provide(options.out / "site", options.wheels)
            from scaleproof.proof.gpu_check.check import check

            return check(options.out, options.dry_run, options.limit, site, options.again)
    except ScaleproofError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"interrupted; run it again to continue with the results in {options.out}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"{error.filename}: {error.strerror}; choose another place", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
