"""Everything that can go wrong through no fault of ours, as one tree.

ScaleproofError                 what the command line prints as one line, never as a traceback
├── InputError                  the user's input is wrong (exit code 2)
│   ├── UnitError               a quantity cannot be read
│   ├── FieldError              a value breaks a rule; names the field, the loader adds file:line:column
│   ├── ScenarioError           the same with its place in a file
│   └── NotFoundError           no part or file of that name
└── RunError                    the input was right and the work failed (exit code 1)
    ├── RankError               a rank died or hung while measuring
    ├── MissingDependencyError  an optional package is not installed
    └── PluginError             a package that brings a strategy is broken
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# The extra that installs each package that the base installation lacks.
_EXTRAS: Final = {
    "jinja2": "reports",
    "joblib": "studies",
    "matplotlib": "reports",
    "pandas": "studies",
    "PIL": "reports",
    "pyarrow": "studies",
    "scipy": "validator",
    "starlette": "explorer",
    "torch": "validator",
    "uvicorn": "explorer",
}
# Characters of a line that is told; what a file says in more is not told again.
_LONGEST: Final = 1000


class ScaleproofError(Exception):
    """Base of all errors that users can cause; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(ScaleproofError):
    """The input is wrong; nothing was run."""

    exit_code = 2


class UnitError(InputError, ValueError):
    """A quantity cannot be read, or has the wrong dimension.

    Also a ValueError, so that pydantic reports it beside the field it stands in.
    """


class FieldError(InputError):
    """A field's value breaks a rule that only the whole scenario can tell."""

    def __init__(self, field: Sequence[str | int], message: str) -> None:
        self.field = tuple(field)
        self.message = message
        super().__init__(f"{'.'.join(map(str, self.field))}: {message}")


class ScenarioError(InputError):
    """One or more problems in scenario files, each as `file:line:column: field: what; what to do`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class NotFoundError(InputError):
    """No scenario, part or file of that name."""


class RunError(ScaleproofError):
    """The input was right but the work could not be finished."""


class RankError(RunError):
    """A rank died or hung: says which, in which phase, and what was kept."""


class MissingDependencyError(RunError):
    """A package that an extra installs is missing."""


class PluginError(RunError):
    """A package that brings a strategy is broken: says which, what, and what to do."""


def missing_extra(error: ModuleNotFoundError) -> MissingDependencyError | None:
    """The error to report where an import failed because an extra is not installed; None for any other module."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    extra = _EXTRAS[package]
    return MissingDependencyError(
        f"this needs the package {package}, which is not installed; install it with: pip install 'scaleproof[{extra}]'"
    )


def printable(text: str) -> str:
    """Text that holds what users wrote, for a terminal: control characters as escapes, of long lines beginning and end."""
    half = _LONGEST // 2
    lines = [line if len(line) <= _LONGEST else f"{line[:half]} … {line[-half:]}" for line in text.split("\n")]
    return "\n".join("".join(one if one.isprintable() else ascii(one)[1:-1] for one in line) for line in lines)


def one_line(error: BaseException) -> str:
    """An error in one line: ours say enough, others need their type."""
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if isinstance(error, ScaleproofError) else f"{type(error).__name__}: {lines[0]}"
