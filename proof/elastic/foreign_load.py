"""Load of other work on the machine's cores during runs."""

from __future__ import annotations

import resource
from typing import Self

from scaleproof.validator.record.cpu_usage import Usage, foreign_loads
from scaleproof.validator.record.provenance import load_warning


class ForeignLoad:
    """Context that measures the load of others. All processes started within it must have ended and been waited for at its
    end."""

    def __enter__(self) -> Self:
        self.load = 0.0
        self._began, self._own_s = Usage.now(), _own_s()
        return self

    def __exit__(self, *_: object) -> None:
        used = Usage.now().since(self._began) | {"own_s": _own_s() - self._own_s}
        self.load = foreign_loads(["here"], [used]).get("here", 0.0)

    @property
    def warning(self) -> str:
        """Warning about the load; "" if it is small."""
        return load_warning(self.load)


def _own_s() -> float:
    """CPU seconds of this process and of all its descendants that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
