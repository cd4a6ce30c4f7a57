"""Writes the example's files, and what its commands print, into docs/tutorial/add-a-strategy.md again.

Run: python docs/scripts/add_a_strategy.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "tutorial" / "add-a-strategy.md"
EXAMPLE: Final = ROOT / "examples" / "gossip-strategy"


def installed(folder: Path) -> dict[str, str]:
    """The environment of a process that has the example's package, whose wheel is built in `folder`."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=EXAMPLE, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def main() -> None:
    """Rewrites the page."""
    text = PAGE.read_text(encoding="utf-8")
    for path in EXAMPLE.glob("*.*"):
        quote = re.compile(rf"(`{re.escape(path.name)}`:\n\n```\w+\n).*?(^```)", re.MULTILINE | re.DOTALL)
        text = quote.sub(lambda match, path=path: match[1] + path.read_text(encoding="utf-8") + match[2], text)
    with tempfile.TemporaryDirectory() as name:
        environment = installed(Path(name))
        (Path(name) / "examples").symlink_to(ROOT / "examples")

        def ran(match: re.Match[str]) -> str:
            printed = []
            for part in re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                if not command.startswith("pip "):
                    words = [sys.executable, "-m", *shlex.split(command)]
                    shown = subprocess.run(words, cwd=name, env=environment, capture_output=True, text=True, check=True).stdout
                printed.append(f"$ {command}\n{shown}")
            return f"```console with the package\n{''.join(printed)}```"

        text = re.sub(r"^```console with the package\n(.*?)^```", ran, text, flags=re.MULTILINE | re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
