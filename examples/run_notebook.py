"""Runs the cells of examples/notebook.ipynb and the examples of docs/reference/python.md, and writes their outputs into them:
`python examples/run_notebook.py`.

Cells are run as in a notebook: what they print, and the value of their last line as text, HTML and picture.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[1]
NOTEBOOK: Final = _ROOT / "examples" / "notebook.ipynb"
PAGE: Final = _ROOT / "docs" / "reference" / "python.md"
_EXAMPLE: Final = re.compile(r"^```python\n(.*?)^```\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell in the namespace `names`, and returns its outputs in the format of notebooks."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)  # noqa: S102 - the cells are the project's own
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        found.append({"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": dict(_shown(value))})
    return found


def _shown(value: Any) -> Iterator[tuple[str, Any]]:
    """The forms of a value that a notebook keeps."""
    if hasattr(value, "_repr_png_"):
        yield "image/png", base64.b64encode(value._repr_png_()[0]).decode()
        yield "text/plain", ["<a figure>"]
        return
    if hasattr(value, "_repr_html_"):
        yield "text/html", value._repr_html_().splitlines(keepends=True)
    yield "text/plain", repr(value).splitlines(keepends=True)


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, which share a namespace."""
    names: dict[str, Any] = {}
    cells = [
        cell | {"outputs": outputs("".join(cell["source"]), names)} if cell["cell_type"] == "code" else cell
        for cell in notebook["cells"]
    ]
    return notebook | {"cells": cells}


def texts(notebook: dict[str, Any]) -> list[list[str]]:
    """The outputs of each cell as text, without pictures and HTML."""
    return [
        ["".join(one.get("text", one.get("data", {}).get("text/plain", ""))) for one in cell.get("outputs", ())]
        for cell in notebook["cells"]
    ]


def rewritten(page: str) -> str:
    """A page whose examples, which share a namespace, are followed by what they print."""
    names: dict[str, Any] = {}

    def example(match: re.Match[str]) -> str:
        printed = "\n".join(texts({"cells": [{"outputs": outputs(match[1], names)}]})[0])
        lines = "\n".join(line.rstrip() for line in printed.splitlines())
        return f"```python\n{match[1]}```\n```text\n{lines}\n```"

    return _EXAMPLE.sub(example, page)


if __name__ == "__main__":
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    NOTEBOOK.write_text(json.dumps(run(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
