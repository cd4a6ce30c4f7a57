"""Runs a command in this process and records its output, exit and files."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import signal
import sqlite3
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import yaml

import scaleproof

# Seconds of the command's own processor time, independent of the machine's load: an input may need a minute, not more.
LIMIT_S: Final = 60.0
# In addition to the memory of this process. Inputs that are too large are rejected before anything is allocated.
LIMIT_BYTES: Final = 4 * 2**30
# Messages name what is wrong; they do not print the file again.
_MAX_SHOWN: Final = 20_000
_ENDINGS: Final = {".html": b"</html>", ".svg": b"</svg>"}


class OvertimeError(BaseException):
    """The command has used up its processor time. No `except Exception` on the way holds it up."""


@dataclass(frozen=True)
class Ended:
    """Outcome of a command."""

    code: int
    out: str
    err: str


class InProcessExecutor(Executor):
    """Does what it is given at once, in this process, which is watched."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **options))
        return future


def run(arguments: Sequence[str], limit_s: float = LIMIT_S, limit_bytes: int = LIMIT_BYTES) -> Ended:
    """Runs a command. Raises whatever it lets through, OvertimeError, and AssertionError for a warning that nobody wrote."""
    from scaleproof.simulator.analysis.study import executors

    printed, reported = io.BytesIO(), io.BytesIO()
    out, err = io.TextIOWrapper(printed, "utf-8"), io.TextIOWrapper(reported, "utf-8", "backslashreplace")
    own = patch.object(executors, "_local", lambda: executors.Workers(InProcessExecutor, 1, ()))
    with own, warnings.catch_warnings(record=True) as met, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("default")
        with limited(limit_s, limit_bytes):
            try:
                code = scaleproof.main(arguments)
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
    odd = [str(one.message) for one in met if not issubclass(one.category, UserWarning)]
    assert not odd, odd
    out.flush()
    err.flush()
    return Ended(code, printed.getvalue().decode(), reported.getvalue().decode())


@contextlib.contextmanager
def limited(limit_s: float, limit_bytes: int) -> Iterator[None]:
    """Lets what is inside use so much processor time and so much more memory."""

    def overtime(number: int, frame: FrameType | None) -> None:
        raise OvertimeError(f"{limit_s:g} s of processor time are used up")

    before, (soft, hard) = signal.signal(signal.SIGPROF, overtime), resource.getrlimit(resource.RLIMIT_AS)
    resident_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (resident_bytes + limit_bytes, hard))
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check(ended: Ended, out: Path, given: Collection[bytes], keeps: bool = False) -> None:
    """What holds of every command, whatever it was given. out: where it may write. given: what it found there, perhaps damaged.
    keeps: whether what was done before an error is meant to stay."""
    # 3: a prediction that does not fit into memory
    assert ended.code in (0, 1, 2, 3), ended
    assert "Traceback" not in ended.err, ended.err
    assert not ended.err.startswith("out of memory"), "what needs so much is to be refused by its numbers"
    assert ended.code in (0, 3) or ended.err.strip() or ended.code == 1, "it failed and said nothing"
    assert len(ended.err) < _MAX_SHOWN, f"{len(ended.err)} characters of errors: {ended.err[:300]}"
    odd = {one for one in ended.out + ended.err if one != "\n" and (ord(one) < 32 or 127 <= ord(one) < 160)}
    assert not odd, f"control characters reach the terminal: {odd}"
    if ended.code in (0, 3) and ended.out.startswith(("{", "[")):
        json.loads(ended.out, parse_constant=_refuse)
    left = [path for path in out.rglob("*") if path.is_file() and path.read_bytes() not in given]
    assert not [path for path in left if path.name.endswith(".part")], left
    for path in left:
        check_whole(path)
    if ended.code == 2 and not keeps:
        assert not [path for path in left if not path.name.startswith(".")], f"refused, and left {left}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def check_whole(path: Path) -> None:
    """Raises where a file is not one of its kind from its first byte to its last."""
    content = path.read_bytes()
    if path.suffix == ".json":
        json.loads(content, parse_constant=_refuse)
    elif path.suffix == ".yaml":
        yaml.safe_load(content.decode())
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        pq.read_table(io.BytesIO(content))
    elif path.suffix == ".npz":
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            assert len(arrays.files) == len([arrays[name] for name in arrays.files])
    elif path.suffix == ".png":
        from PIL import Image

        with Image.open(io.BytesIO(content)) as image:
            image.verify()
    elif path.suffix == ".sqlite":
        # the database rolls back what a killed process has not committed
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    elif path.name.endswith(".sqlite-journal"):
        pass
    elif path.suffix in _ENDINGS:
        assert content.rstrip().endswith(_ENDINGS[path.suffix]), path
    else:
        content.decode()


def peak_bytes() -> int:
    """Peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
