"""Imports of packages with kernels for CUDA: where the real one is missing or cannot be loaded, its stand-in is imported.

An import that a script guards, as in `try: import flash_attn`, fails as it would without a stand-in, unless the user names the
package: whether the real one is installed where the script will run is not known here.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.metadata
import linecache
import re
import runpy
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType
from typing import Any, Final

from scaleproof.validator.capture.packages import STAND_INS
from scaleproof.validator.capture.trace import RankTrace

# A version that scripts compare with those that they need.
_VERSION: Final = "99.0.0"
_GUARDS: Final = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
_OPTIONAL: Final = "uses {0} only where it is installed, which it is not here; capture with --with {0} if your GPUs have it"
_REPLACED: Final = "imports {}, whose kernels cannot run here; its stand-in records kernels in its place"
_MISSING: Final = re.compile(
    r"cannot import name '(?P<name>\w+)' from '(?P<package>[\w.]+)'|No module named '(?P<module>[\w.]+)'"
    r"|module '(?P<of>[\w.]+)' has no attribute '(?P<attribute>\w+)'"
)
# Packages that are better than their stand-ins, since their kernels are launched by what records them. Compiled kernels of all
# others cannot run where PyTorch is built for processors, even if they can be imported.
_RECORDED: Final = ("triton", "liger_kernel", "deepspeed")
Names = Mapping[str, Any]


class PackageFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages and their stand-ins. trace: gets notes for users. named: packages whose guarded imports succeed too.
    patches: functions that are called with the imported module of a package, by the package's name."""

    def __init__(
        self, trace: RankTrace, named: Collection[str], patches: Mapping[str, Callable[[types.ModuleType], None]]
    ) -> None:
        self._trace, self._named, self._patches = trace, named, patches
        self._modules: dict[str, Names] = {}

    def install(self) -> None:
        """Makes imports ask this finder first."""
        sys.meta_path.insert(0, self)
        real = importlib.metadata.distribution

        def distribution(name: str) -> Any:
            package = name.replace("-", "_").lower()
            is_ours = package in self._modules or (package in self._named and package in STAND_INS)
            return types.SimpleNamespace(version=_VERSION, metadata={"Name": name}) if is_ours else real(name)

        setattr(importlib.metadata, "distribution", distribution)  # noqa: B010
        owners = importlib.metadata.packages_distributions
        ours = {name: [name.replace("_", "-")] for name in self._named}
        setattr(importlib.metadata, "packages_distributions", lambda: {**owners(), **ours})  # noqa: B010
        setattr(importlib.metadata, "version", lambda name: str(distribution(name).version))  # noqa: B010
        for name in STAND_INS:
            if name in sys.modules:
                self._patch(sys.modules[name])

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """See importlib. None leaves a module to other finders."""
        package = name.partition(".")[0]
        if package not in STAND_INS:
            return None
        if package in self._modules:
            return ModuleSpec(name, self, is_package=True) if self._has(name) else None
        if name != package:
            return None
        real = PathFinder.find_spec(name)
        if (
            real is not None
            and real.loader is not None
            and package in _RECORDED
            and (package not in self._named or package == "triton")
        ):
            real.loader = _RealOrStandIn(real.loader, self)
            return real
        if real is not None:
            self._trace.note(_REPLACED.format(package))
        elif package not in self._named and (line := _guarded(sys._getframe(1))) is not None:
            if self._trace.context.is_own_file(line):
                self._trace.note(_OPTIONAL.format(package))
            return None
        self.stand_in(package)
        return ModuleSpec(name, self, is_package=True)

    def stand_in(self, package: str) -> None:
        """Prepares the stand-in of a package."""
        self._modules[package] = {}
        self._modules |= importlib.import_module(STAND_INS[package]).MODULES

    def _has(self, name: str) -> bool:
        """Whether a stand-in has a module, itself or by one inside of it, or all modules of that name."""
        return any(known == name or known.startswith(f"{name}.") or fnmatch(name, known) for known in self._modules)

    def exec_module(self, module: types.ModuleType) -> None:
        """Fills a module of a stand-in."""
        name = module.__name__

        def missing(attribute: str) -> Any:
            if self._has(f"{name}.{attribute}"):
                return importlib.import_module(f"{name}.{attribute}")
            raise AttributeError(f"module '{name}' has no attribute '{attribute}'")

        known = self._modules.get(name) or next((names for one, names in self._modules.items() if fnmatch(name, one)), {})
        always = {"__version__": _VERSION, "__file__": f"<stand-in of {name}>", "__getattr__": missing}
        module.__dict__.update(always | dict(known))
        self._patch(module)

    def load(self, real: Any, module: types.ModuleType) -> None:
        """Loads a package that is installed, or its stand-in where that fails."""
        name = module.__name__
        try:
            real.exec_module(module)
        except (ImportError, OSError, RuntimeError, AssertionError):
            self._trace.note(_REPLACED.format(name))
            for inner in [one for one in sys.modules if one.startswith(f"{name}.")]:
                del sys.modules[inner]
            self.stand_in(name)
            self.exec_module(module)
        else:
            self._patch(module)

    def _patch(self, module: types.ModuleType) -> None:
        if (patch := self._patches.get(module.__name__)) is not None:
            patch(module)


def missing_words(text: str) -> str:
    """Why a script fails that uses a name which a stand-in does not have, by the text of its error; empty for other errors."""
    found = _MISSING.search(text)
    if found is None:
        return ""
    name = found["module"] or ".".join(filter(None, (found["package"] or found["of"], found["name"] or found["attribute"])))
    package = name.partition(".")[0]
    if not isinstance(getattr(getattr(sys.modules.get(package), "__spec__", None), "loader", None), PackageFinder):
        return ""
    what = f"the script uses {name}, which is not in the stand-in of {package} for machines without GPUs"
    return f"{what}; install {package} here, or use another function"


class _RealOrStandIn(importlib.abc.Loader):
    """The loader of a package that is installed."""

    def __init__(self, real: Any, finder: PackageFinder) -> None:
        self._real, self._finder = real, finder

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """See importlib."""
        module: types.ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """See importlib."""
        self._finder.load(self._real, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _guarded(frame: FrameType | None) -> str | None:
    """The file whose code catches that an import fails, None if nothing does. Only the code of modules that import one another
    counts, and a function that imports: what catches errors of a whole script does not make an import optional."""
    while frame is not None:
        code = frame.f_code
        if "importlib" not in code.co_filename:
            if _catches(code.co_filename, frame.f_lineno):
                return code.co_filename
            if code.co_name != "<module>" or code.co_filename == runpy.__file__:
                return None
        frame = frame.f_back
    return None


def _catches(file: str, line: int) -> bool:
    """Whether a line of a file imports nothing by itself, as one that looks whether a package exists, or is in a `try` that
    catches failed imports."""
    tree = _tree(file)
    if tree is None:
        return False
    at = list(_statements_at(tree, line))
    imports = any(isinstance(one, ast.Import | ast.ImportFrom) for one in at)
    tries = [one for one in at if isinstance(one, ast.Try) and one.body[0].lineno <= line <= (one.body[-1].end_lineno or 0)]
    handlers = [handler for one in tries for handler in one.handlers if not isinstance(handler.body[-1], ast.Raise)]
    caught = [ast.unparse(handler.type) if handler.type else "Exception" for handler in handlers]
    return any(name in kinds for kinds in caught for name in _GUARDS) or (
        "find_spec" in linecache.getline(file, line) and not imports
    )


def _statements_at(node: ast.AST, line: int) -> Iterator[ast.stmt]:
    """The statements that a line is in, the outermost first. Others are not looked at, as files may be long."""
    for one in ast.iter_child_nodes(node):
        if getattr(one, "lineno", line) <= line <= (getattr(one, "end_lineno", None) or line):
            if isinstance(one, ast.stmt):
                yield one
            yield from _statements_at(one, line)


@functools.cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
