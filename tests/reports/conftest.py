"""What the tests of reports share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .example import edit, failed_case, write_results


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of eight scenarios and one that failed; tests only read it."""
    folder = write_results(tmp_path_factory.mktemp("eight"))
    edit(folder, lambda plain: plain["cases"].append(failed_case()))
    return folder
