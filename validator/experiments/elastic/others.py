"""Others: how much of the machine's cores other work took while processes of ours ran."""

from __future__ import annotations

import resource
from typing import Self

from scaleproof.validator.record.provenance import Usage, foreign_loads, load_warning


class Others:
    """A context that watches it. By its end the processes that it started, and theirs, must have ended and been waited for."""

    def __enter__(self) -> Self:
        self.load = 0.0
        self._began, self._own_s = Usage.now(), _own_s()
        return self

    def __exit__(self, *_: object) -> None:
        used = Usage.now().since(self._began) | {"own_s": _own_s() - self._own_s}
        self.load = foreign_loads(["here"], [used]).get("here", 0.0)

    @property
    def warning(self) -> str:
        """What to know of it, if anything."""
        return load_warning(self.load)


def _own_s() -> float:
    """Processor time of this process and of all that have ended which it started, and theirs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
