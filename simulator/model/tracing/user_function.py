"""The function of a user that builds a model: finding it, calling it, and checking what it returns."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from scaleproof.simulator.common.errors import FieldError, MissingDependencyError
from scaleproof.simulator.model.traced import PACKAGES

PREFIX: Final = "python:"
EXAMPLE: Final = "`return model, torch.randn(8, 3, 224, 224)`"


class UserModel(NamedTuple):
    """What a user's function returns: a tuple of the module and its example inputs, or a mapping with these names.

    targets: example targets. loss: function of the module's outputs and the targets. optimizer: builds an optimizer of
    parameters.
    """

    module: Any
    inputs: tuple[Any, ...]
    targets: tuple[Any, ...] = ()
    loss: Callable[..., Any] | None = None
    optimizer: Callable[[Any], Any] | None = None


class GpuRequestedError(Exception):
    """The user's code requests a device that tracing does not have."""


def refuse(source: str, message: str) -> NoReturn:
    """Raises FieldError for the source of a model."""
    raise FieldError(("model", "source"), f"{source}: {message}")


@contextmanager
def user_function(source: str, folder: Path) -> Iterator[tuple[Any, Any]]:
    """A context in which the user's modules can be imported: torch, and the user's function.

    Raises FieldError if there is no such function, and MissingDependencyError without torch.
    """
    is_package = not source.startswith(PREFIX) and source.startswith(PACKAGES)
    module_name, function_name, arguments = ("torch", "", {}) if is_package else _parts_of(source)
    sys.path.insert(0, str(folder))
    try:
        # before torch is imported, which takes seconds
        check_exists(source, module_name, folder)
        try:
            import torch
        except ImportError:
            raise MissingDependencyError(
                "torch is not installed, and tracing needs it; pip install 'scaleproof[validator]'"
            ) from None
        if is_package:
            from scaleproof.simulator.model.tracing.packages import package_function

            yield torch, package_function(source, torch)
        else:
            yield torch, functools.partial(function_of(source, module_name, function_name, folder), **arguments)
    finally:
        sys.path.remove(str(folder))


def _parts_of(source: str) -> tuple[str, str, dict[str, Any]]:
    """The names of the user's module and function, and the arguments of the function. Raises FieldError."""
    module_name, _, called = source.removeprefix(PREFIX).partition(":")
    # a file is written as often as its module
    if module_name.endswith(".py"):
        module_name = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
    if not (source.startswith(PREFIX) and module_name and called) or module_name.startswith("."):
        refuse(source, "not of the form python:module:function")
    name, bracket, _ = called.partition("(")
    return module_name, name, _arguments(source, called) if bracket else {}


def _arguments(source: str, called: str) -> dict[str, Any]:
    """The arguments in a call, given by name and as literals. Raises FieldError."""
    try:
        match ast.parse(called, mode="eval").body:
            case ast.Call(func=ast.Name(), args=[], keywords=given) if all(one.arg for one in given):
                return {str(one.arg): ast.literal_eval(one.value) for one in given}
    except (SyntaxError, ValueError):
        pass
    refuse(source, f"cannot read {called!r}; give arguments by name, as in build(width=32, norm='group')")


def check_exists(source: str, module_name: str, folder: Path) -> None:
    """Raises FieldError if there is no such module, or no package that it would be in."""
    importlib.invalidate_caches()
    package = module_name.partition(".")[0]
    with user_errors(source, f"module {module_name}", folder):
        found = importlib.util.find_spec(package)
    if found is None:
        refuse(source, f"there is no module {package} in {folder} or where Python looks for modules")


def function_of(source: str, module_name: str, name: str, folder: Path) -> Any:
    """The user's function. Raises FieldError if it cannot be imported."""
    try:
        with user_errors(source, f"module {module_name}", folder):
            module = importlib.import_module(module_name)
    except FieldError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{module_name}.".startswith(f"{cause.name}."):
            refuse(source, f"there is no module {cause.name} in {folder} or where Python looks for modules")
        raise
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        import difflib

        close = difflib.get_close_matches(name, known, n=1)
        refuse(source, f"module {module_name} has no function {name}" + (f"; did you mean {close[0]!r}?" if close else ""))
    return function


@contextmanager
def user_errors(source: str, activity: str, folder: Path) -> Iterator[None]:
    """Turns any error of the user's code into a FieldError in one line with its place. activity: what raised it."""
    try:
        yield
    except FieldError:
        raise
    except (Exception, SystemExit) as error:
        text, place = " ".join(str(error).split())[:300], _place(error, folder)
        message = f"{activity} raised {type(error).__name__}: {text}{place}"
        if isinstance(error, GpuRequestedError) or re.search(r"cuda|nvidia|accelerator", text, re.IGNORECASE):
            message = f"{activity} needs a GPU: {text}{place}; leave the device out, tracing needs none"
        elif re.search(r"\bmeta\b|data-dependent", text):
            message += "; while tracing, tensors have shapes and no values"
        raise FieldError(("model", "source"), f"{source}: {message}") from error


def _place(error: BaseException, folder: Path) -> str:
    """` (file:line)` of the innermost line that is neither torch's nor ours."""
    if isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno)]
    else:
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = str(Path(__file__).parent)
    known = [
        (name, line)
        for name, line in frames
        if not name.startswith((ours, "<frozen")) and "/torch/" not in name and "/importlib/" not in name
    ]
    if not known:
        return ""
    name, line = known[-1]
    path = Path(name)
    return f" ({path.relative_to(folder) if path.is_relative_to(folder) else path}:{line})"


def checked(torch: Any, source: str, returned: Any) -> UserModel:
    """What the user's function has returned. Raises FieldError if it is something else."""
    if isinstance(returned, torch.nn.Module):
        refuse(source, f"returns a module alone; return an example of its inputs too, such as {EXAMPLE}")
    if isinstance(returned, Mapping):
        if unknown := sorted(set(returned) - set(UserModel._fields)):
            refuse(source, f"returns {unknown[0]!r}; give only {', '.join(UserModel._fields)}")
        if missing := [name for name in ("module", "inputs") if name not in returned]:
            refuse(source, f"returns no {missing[0]!r}; give at least module and inputs")
        groups = {name: _tensors(returned.get(name, ())) for name in ("inputs", "targets")}
        user = UserModel(**{**returned, **groups})
    elif isinstance(returned, tuple) and len(returned) > 1 and isinstance(returned[0], torch.nn.Module):
        user = UserModel(returned[0], returned[1:])
    else:
        kind = type(returned).__name__
        refuse(source, f"returns a {kind}; return a module and its example inputs, such as {EXAMPLE}")
    if not isinstance(user.module, torch.nn.Module):
        refuse(source, f"its module is a {type(user.module).__name__}; give a torch.nn.Module")
    if not user.inputs:
        refuse(source, f"returns no example inputs; give some, such as {EXAMPLE}")
    for name in ("loss", "optimizer"):
        if getattr(user, name) is not None and not callable(getattr(user, name)):
            refuse(source, f"its {name} is a {type(getattr(user, name)).__name__}; give a function")
    if user.targets and user.loss is None:
        refuse(source, "returns targets without a loss; give a function of the outputs and the targets as loss")
    for what, tensors in (("input", user.inputs), ("target", user.targets)):
        for number, tensor in enumerate(tensors, start=1):
            if not isinstance(tensor, torch.Tensor):
                refuse(source, f"example {what} {number} is a {type(tensor).__name__}; give tensors")
            if tensor.dim() == 0 or len(tensor) == 0 or len(tensor) != len(user.inputs[0]):
                shape = "×".join(map(str, tensor.shape)) or "no dimensions"
                refuse(
                    source, f"example {what} {number} has {shape}; the first dimension of each is the batch, the same for all"
                )
    return user


def _tensors(given: Any) -> tuple[Any, ...]:
    """Tensors that are given as one or as a sequence."""
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def loss_of(torch: Any, source: str, user: UserModel, outputs: Any, targets: Sequence[Any]) -> Any:
    """The loss that training minimises: the user's, a scalar that the module returns, or the mean square of its outputs.

    Raises FieldError if it is not a scalar, or needs no gradient.
    """
    if user.loss is not None:
        loss = user.loss(outputs, *targets)
        if not torch.is_tensor(loss):
            refuse(source, f"its loss returns a {type(loss).__name__}; return a tensor with one number")
    else:
        given = outputs.get("loss") if isinstance(outputs, Mapping) else None
        leaves = [one for one in torch.utils._pytree.tree_leaves(outputs) if torch.is_tensor(one) and one.requires_grad]
        if given is None and not leaves:
            message = "its outputs need no gradient, so that nothing can be trained; return what its trained parameters affect"
            refuse(source, message)
        if given is not None:
            loss = given
        elif leaves[0].dim() == 0:
            loss = leaves[0]
        else:
            loss = sum(one.square().mean() for one in leaves)
    if loss.dim():
        shape = "×".join(map(str, loss.shape))
        refuse(source, f"its loss has {shape} numbers; return one, such as loss.mean()")
    if not loss.requires_grad:
        refuse(source, "its loss does not depend on parameters; leave out detach() and no_grad()")
    return loss
