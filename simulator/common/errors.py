"""Errors that users can cause or fix, as one tree, and the exit codes of the command line.

ScaleproofError                 the command line prints it as one line, without a traceback
├── InputError                  the user's input is wrong (exit code 2)
│   ├── UnitError               a quantity cannot be parsed
│   ├── FieldError              a field's value breaks a rule; the loader adds file:line:column
│   ├── ScenarioError           problems in scenario files, each with file:line:column
│   └── NotFoundError           no part or file has that name
└── RunError                    the input is right but the work failed (exit code 1)
    ├── RankError               a rank died or hung during a measurement
    ├── MissingDependencyError  an optional package is not installed
    └── PluginError             a package that provides a strategy is broken
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final


class ExitCode(IntEnum):
    """What the command line returns."""

    DONE = 0
    FAILED = 1  # RunError, or a result that breaks a limit
    WRONG_INPUT = 2  # InputError
    OUT_OF_MEMORY = 3  # the scenario is predicted, and does not fit into its devices' memory
    FOUND = 4  # a diagnosis found a loss above its limit
    INTERRUPTED = 130  # by Ctrl-C
    TERMINATED = 143  # by SIGTERM


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
# Most characters of a printed line; longer ones are cut in the middle.
_MAX_LINE: Final = 1000


class ScaleproofError(Exception):
    """Base of all errors that users can cause; `exit_code` is what the command line returns."""

    exit_code = ExitCode.FAILED

    def __reduce__(self) -> tuple[Any, ...]:
        """How to pickle the error: without calls of subclasses' constructors, whose arguments may be others than `args`."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InputError(ScaleproofError):
    """The user's input is wrong; nothing was run."""

    exit_code = ExitCode.WRONG_INPUT


class UnitError(InputError, ValueError):
    """A quantity cannot be parsed or has the wrong dimension.

    Also a ValueError, so that pydantic reports it with its field.
    """


class FieldError(InputError):
    """A field's value breaks a rule that involves other fields. field: path of keys and indices."""

    def __init__(self, field: Sequence[str | int], message: str) -> None:
        self.field = tuple(field)
        self.message = message
        super().__init__(f"{'.'.join(map(str, self.field))}: {message}")


class ScenarioError(InputError):
    """One or more problems in scenario files, each as `file:line:column: field: problem; remedy`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class NotFoundError(InputError):
    """No scenario, part or file has that name."""


class RunError(ScaleproofError):
    """The input is right but the work could not be finished."""


class RankError(RunError):
    """A rank died or hung; the message names it, its phase and the results that were kept."""


class MissingDependencyError(RunError):
    """An optional package, which an extra installs, is missing."""


class PluginError(RunError):
    """A package that provides a strategy is broken; the message names it, the problem and the remedy."""


def missing_extra(error: ModuleNotFoundError) -> MissingDependencyError | None:
    """The error to report where an import failed because an extra is not installed; None for any other module."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    extra = _EXTRAS[package]
    return MissingDependencyError(
        f"this needs the package {package}, which is not installed; install it with: pip install 'scaleproof[{extra}]'"
    )


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raises MissingDependencyError, which names the extra, where an import fails because an extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None


def printable(text: str) -> str:
    """Text that is safe to print on a terminal: control characters are escaped, long lines are cut in the middle."""
    if len(text) <= _MAX_LINE and text.isprintable():
        return text
    half = _MAX_LINE // 2
    lines = [line if len(line) <= _MAX_LINE else f"{line[:half]} … {line[-half:]}" for line in text.split("\n")]
    return "\n".join("".join(char if char.isprintable() else ascii(char)[1:-1] for char in line) for line in lines)


def one_line(error: BaseException) -> str:
    """First line of an error's message, with the type's name unless it is a ScaleproofError."""
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if isinstance(error, ScaleproofError) else f"{type(error).__name__}: {lines[0]}"
