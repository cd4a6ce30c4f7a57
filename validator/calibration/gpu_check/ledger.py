"""Ledger of the check's parts: runs them in order, reports each in a line, and keeps the results as JSON from the first part
on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from scaleproof.simulator.common.errors import RunError, one_line
from scaleproof.simulator.run.files import write_atomically

T = TypeVar("T")
State = Literal["done", "failed", "not run"]
RESULT_FILE: Final = "results.json"
OUT_OF_TIME: Final = "not run: out of time"
_NAME_WIDTH: Final = 32


class NotRunError(RunError):
    """A part that was not begun, without a failure."""


@dataclass
class Ledger:
    """Parts in order. until_s: time.monotonic() after which no part begins. label: note on every result, if it is not
    accurate."""

    out: Path
    label: str
    until_s: float
    report: Callable[[str], None] = print
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def failed(self) -> list[str]:
        """Names of the parts that failed."""
        return [entry["part"] for entry in self.entries if entry["state"] == "failed"]

    def not_run(self) -> list[str]:
        return [entry["part"] for entry in self.entries if entry["state"] == "not run"]

    def part(
        self, name: str, work: Callable[[], T], words: Callable[[T], str], plain: Callable[[T], Any] = lambda result: result
    ) -> T:
        """Runs `work` as a part and returns its result; `words` gives it as a line of text, `plain` as data for JSON.

        Raises RunError if it failed, and NotRunError if no time was left; the part is reported and recorded in either case.
        """
        begin_s = time.monotonic()
        try:
            if self.left_s <= 0:
                raise NotRunError(OUT_OF_TIME)
            result = work()
        except NotRunError as error:
            self._record(name, "not run", begin_s, str(error))
            raise
        except Exception as error:
            why = one_line(error)
            self._record(name, "failed", begin_s, f"failed: {why}")
            raise RunError(why) from None
        self._record(name, "done", begin_s, words(result), plain(result))
        return result

    def attempt(
        self, name: str, work: Callable[[], T], words: Callable[[T], str], plain: Callable[[T], Any] = lambda result: result
    ) -> T | None:
        """Result of a part, see `part`; None if it failed or was not run."""
        try:
            return self.part(name, work, words, plain)
        except RunError:
            return None

    def _record(self, name: str, state: State, begin_s: float, words: str, result: Any = None) -> None:
        seconds = time.monotonic() - begin_s
        self.report(f"{name:<{_NAME_WIDTH}} {seconds:6.1f} s  {words}")
        self.entries.append({"part": name, "state": state, "seconds": round(seconds, 3), "words": words, "result": result})
        plain = {
            "version": 1,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "label": self.label,
            "parts": self.entries,
        }
        write_atomically(self.out / RESULT_FILE, (json.dumps(plain, indent=1) + "\n").encode())
