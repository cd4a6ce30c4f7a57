"""Takes pictures of pages as readers see them: `python docs/scripts/screenshots.py`. Needs Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import scaleproof

IMAGES: Final = Path(__file__).parents[1] / "images"
EXPLORED: Final = "mixtral-8x7b-experts-h100"
STUDY: Final = "resnet50-ring-or-servers"
FLAGS: Final = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
                "--disable-background-networking", "--disable-component-update"]  # fmt: skip
# name, the results that are shown, width and height in pixels, and theme
VIEWS: Final = (
    ("report.png", "study", 1280, 1340, "light"),
    ("plan.png", "plan", 1280, 1200, "light"),
)
# the commands that write the results, without the folder
COMMANDS: Final = {
    "study": ("sweep", STUDY, "--intervals", "--out"),
    "plan": ("plan", "llama-2-7b-fsdp-a100", "--gpus", "32,64,128", "--out"),
}


def made(name: str, folder: Path) -> Path:
    """The page of some results."""
    for command in ([*COMMANDS[name], str(folder)], ["report", str(folder)]):
        if scaleproof.main(command):
            raise SystemExit(f"scaleproof {' '.join(command)} has failed")
    return folder / "index.html"


def taken(browser: Browser, page: Path, view: tuple[str, str, int, int, str]) -> None:
    """Takes a picture. view: its file, the results, width and height in pixels, and theme."""
    name, _, width_px, height_px, theme = view
    context = browser.new_context(viewport={"width": width_px, "height": height_px}, color_scheme=theme)
    opened = context.new_page()
    opened.goto(page.as_uri())
    opened.locator("figure[data-drawn]").first.wait_for()
    # what comes into sight is drawn by and by
    opened.wait_for_timeout(2000)
    opened.screenshot(path=IMAGES / name)
    context.close()
    reduced(IMAGES / name)


def explored(browser: Browser) -> None:
    """Takes a picture of the explorer, once the full result and the curves are shown."""
    command = [sys.executable, "-m", "scaleproof", "explore", EXPLORED, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            if server.stdout is None or not (found := re.search(r"http://\S+", server.stdout.readline())):
                raise SystemExit("the explorer has printed no address")
            opened = browser.new_page(viewport={"width": 1280, "height": 1180})
            opened.goto(found[0])
            opened.wait_for_selector("body[data-complete]")
            opened.screenshot(path=IMAGES / "explorer.png")
            opened.close()
        finally:
            server.terminate()
    reduced(IMAGES / "explorer.png")


def reduced(picture: Path) -> None:
    """Writes a picture with a palette, a third of the bytes."""
    with Image.open(picture) as image:
        few = image.convert("RGB").quantize(192, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(picture, "png", optimize=True)
    print(picture)


if __name__ == "__main__":
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium found; install it")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {name: made(name, Path(folder) / name) for name in COMMANDS}
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for view in VIEWS:
            taken(browser, pages[view[1]], view)
        explored(browser)
        browser.close()
