"""docs/guides/claims.md has a valid example and all quantities, docs/measured/claims.md all verdicts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaleproof.proof.claims.claim import names, read
from scaleproof.proof.claims.evaluate import evaluate
from scaleproof.proof.claims.quantities import KINDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guides" / "claims.md").read_text()
VERDICTS = (DOCS / "measured" / "claims.md").read_text()


def test_the_example_of_the_page_is_a_valid_claim(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "my-claim.yaml"
    path.write_text(text)
    claim = read(str(path))
    assert claim.netlab is not None
    assert evaluate(claim).verdict in ("holds when", "does not hold")


@pytest.mark.parametrize("name", KINDS)
def test_the_table_lists_the_quantity(name: str) -> None:
    kind = KINDS[name]
    assert re.search(
        rf"^\| `{name}` \| {re.escape(kind.words)} \| .* \| {'yes' if kind.is_measured else 'no'} \|$", PAGE, re.MULTILINE
    )


@pytest.mark.parametrize("name", names())
def test_the_page_lists_the_claim(name: str) -> None:
    assert f"\n{name}: {read(name).claim}\n" in VERDICTS
