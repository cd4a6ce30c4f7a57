"""Hooks of `make site`: links that leave docs, and blocks whose marks only tests read."""

from __future__ import annotations

import os
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_BLOCK = re.compile(r"^```console .*$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page with links to README.md led to the home page, other links out of docs as plain text, and plain console blocks."""
    folder = os.path.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(folder, match[2]))
        if re.match(r"[a-z]+:", match[2]) or not target.startswith(".."):
            return match[0]
        if target == "../README.md":
            return f"[{match[1]}]({os.path.relpath('README.md', folder or '.')})"
        return match[1]

    parts = re.split(r"(^```.*?^```$)", _BLOCK.sub("```console", markdown), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)
