"""Functions are replaced wherever modules have imported them by name."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from scaleproof.validator.capture.backend import replace_functions


def times(factor: int) -> Callable[[int], int]:
    return lambda value: factor * value


def test_a_function_is_replaced_in_modules_that_import_it_before_and_after_other_replacements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def module(name: str, **names: Any) -> Any:
        made = types.ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def work(value: int) -> int:
        return value

    owner, early = module("owner_of_work", work=work, other=abs), module("early_user_of_work", renamed=work)
    replace_functions(owner, work=times(2))
    assert early.renamed is owner.work
    assert (owner.work(1), inspect.signature(owner.work)) == (2, inspect.signature(work))
    late = module("late_user_of_work", work=owner.work)
    early.added = owner.work
    replace_functions(owner, work=times(3))
    assert [user(1) for user in (owner.work, early.renamed, early.added, late.work)] == [3] * 4
    assert owner.other is abs
