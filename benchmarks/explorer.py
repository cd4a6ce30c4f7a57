"""How long the explorer takes to follow a change: the server's answer, and until the browser has drawn it.

Prints the median and the 95th percentile over 100 moves of sliders in each of three scenarios, on loopback.
Run: python benchmarks/explorer.py
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

CHANGES = 100
SCENARIOS = ("resnet50-ring-p100", "resnet50-servers-p100", "megatron-175b-3d-selene")
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# changes a slider by one, as an arrow key does, and waits until that change's forecast has been drawn; milliseconds
_CHANGE = """([id, by]) => new Promise((done) => {
  const slider = document.getElementById(id);
  const begin = performance.now();
  const watch = new MutationObserver(() => {
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
  });
  watch.observe(document.body, {attributeFilter: ['data-shown']});
  slider.valueAsNumber += by;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
  slider.dispatchEvent(new Event('change', {bubbles: true}));
})"""
# Sliders and directions: no state occurs twice, since a repeated one would come from a cache.
_SLIDERS = (
    ("control-cluster-network-bandwidth", -1),
    ("control-cluster-network-latency", 1),
    ("control-cluster-node-link-bandwidth", -1),
)


def main() -> None:
    """Prints medians and 95th percentiles of each scenario."""
    scaleproof = Path(sys.executable).with_name("scaleproof")
    command = [str(scaleproof), "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        where = process.stdout.readline().partition("?")[0]
        try:
            for scenario in SCENARIOS:
                print_times(f"{scenario}: response of the server", served_ms(where, scenario))
            for name, times_ms in changes_ms(where):
                print_times(name, times_ms)
        finally:
            process.terminate()


def print_times(name: str, times_ms: list[float]) -> None:
    """Prints a row of the table."""
    p95 = statistics.quantiles(times_ms, n=20)[-1]
    print(f"{name:<60} median {statistics.median(times_ms):6.1f} ms, 95th percentile {p95:6.1f} ms of {len(times_ms)}")


def served_ms(where: str, scenario: str) -> list[float]:
    """Milliseconds of first estimates at different bandwidths."""
    times_ms = []
    for number in range(CHANGES):
        query = urlencode(
            [("scenario", scenario), ("set", f"cluster.network.bandwidth={20 + number} Gbit/s"), ("look", "first")]
        )
        begin = time.perf_counter()
        urlopen(f"{where}api/answer?{query}").read()
        times_ms.append(1e3 * (time.perf_counter() - begin))
    return times_ms[1:]


def changes_ms(where: str) -> list[tuple[str, list[float]]]:
    """Milliseconds from a slider's move until the forecast is drawn, by scenario and for all."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        page = chromium.new_page()
        found = [(f"{one}: drawn after a change", drawn_ms(page, f"{where}?scenario={one}")) for one in SCENARIOS]
        chromium.close()
    return [*found, ("all changes", [ms for _, times_ms in found for ms in times_ms])]


def drawn_ms(page: Page, address: str) -> list[float]:
    """Milliseconds from each move of a slider until its forecast has been drawn."""
    page.goto(address)
    page.wait_for_selector("#answer[aria-busy=false]")
    times_ms = []
    for number in range(CHANGES):
        times_ms.append(page.evaluate(_CHANGE, list(_SLIDERS[number % len(_SLIDERS)])))
        # the pause of a user between two moves
        page.wait_for_timeout(50)
    return times_ms


if __name__ == "__main__":
    main()
