"""Writes what commands print into the console blocks of README.md and of the pages in docs again.

Blocks marked `console measured` stay as they are, since they show times of a machine. Commands build on one another, so all of
them run in one folder, in the order of the pages.

Run: python docs/scripts/console.py [PAGE ...]
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```console( measured)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """README.md and all pages in docs, in the order in which their commands run."""
    return [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]


def rewritten(text: str, folder: Path) -> str:
    """A page's text with what its commands print now. Raises SystemExit for a command that fails."""

    def block(match: re.Match[str]) -> str:
        parts = re.split(r"^\$ ", match[2], flags=re.MULTILINE)[1:]
        printed = [_ran(part, folder, bool(match[1])) for part in parts]
        return f"```console{match[1] or ''}\n{''.join(printed)}```"

    return _BLOCK.sub(block, text)


def _ran(part: str, folder: Path, measured: bool) -> str:
    """A command with its output: as shown where it is measured, else as it prints now. A measured one runs if it writes files,
    which later commands may read."""
    command, _, _ = part.partition("\n")
    if measured and "--out" not in command:
        return f"$ {part}"
    done = subprocess.run([sys.executable, "-m", *shlex.split(command)], capture_output=True, text=True, cwd=folder)
    # 3: predicted, and does not fit into memory
    if done.returncode not in (0, 3):
        raise SystemExit(f"{command}: {done.stderr}")
    return f"$ {part}" if measured else f"$ {command}\n{done.stdout.rstrip()}\n"


def main() -> None:
    """Rewrites the pages given, or all."""
    named = [Path(name).resolve() for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for linked in ("scenarios", "examples"):
            (folder / linked).symlink_to(_ROOT / linked)
        for page in named or pages():
            text = page.read_text(encoding="utf-8")
            changed = rewritten(text, folder)
            if changed != text:
                page.write_text(changed, encoding="utf-8")
                print(page.relative_to(_ROOT))


if __name__ == "__main__":
    main()
