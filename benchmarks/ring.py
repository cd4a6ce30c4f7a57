"""One ring allreduce, every rank with its own speed and start, every message timed: replay against a plain SimPy ring.

Run: python benchmarks/ring.py
"""

from __future__ import annotations

import resource
import time

import numpy as np
import simpy

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import replay
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.engine.variation import Variation
from scaleproof.simulator.program import Path, Program, ProgramBuilder

_CHUNK_BYTES = 1e6


def _rates(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes per second and start of each rank."""
    generator = np.random.default_rng(0)
    return generator.uniform(5e9, 10e9, ranks), generator.uniform(0, 1e-3, ranks)


def simpy_ring(ranks: int) -> float:
    """The end of the allreduce, by a process per rank and a queue between neighbours."""
    rate_Bps, start_s = _rates(ranks)
    environment = simpy.Environment()
    queues = [simpy.Store(environment) for _ in range(ranks)]

    def rank(number: int):  # type: ignore[no-untyped-def]
        yield environment.timeout(start_s[number])
        for _ in range(2 * (ranks - 1)):
            yield environment.timeout(_CHUNK_BYTES / rate_Bps[number])
            queues[(number + 1) % ranks].put(None)
            yield queues[number].get()

    processes = [environment.process(rank(number)) for number in range(ranks)]
    environment.run(simpy.AllOf(environment, processes))
    return float(environment.now)


def ring_program(ranks: int) -> Program:
    """One message per rank; each follows the rank's own last message and the one that it received last."""
    rate_Bps, _ = _rates(ranks)
    builder = ProgramBuilder()
    for number in range(ranks):
        builder.rank(str(number))
    for number in range(ranks):
        builder.transfer(number, (number + 1) % ranks, _CHUNK_BYTES, Path(0.0, rate_Bps[number]), Phase.SEND, ())
    for number in range(ranks):
        builder.carry(number, (number, (number - 1) % ranks))
    return builder.build()


def replay_ring(ranks: int) -> float:
    """The end of the allreduce, by replay of the program, 2(n−1) steps; only the last step is kept."""
    program = ring_program(ranks)
    last = np.zeros((ranks, 1))
    for _, end in replay.replay(program, 2 * (ranks - 1), durations_s(program), Variation(start_s=_rates(ranks)[1])):
        last = end
    # a rank is done once it has received what its neighbour sent last
    return float(last.max())


def main() -> None:
    """Prints seconds, messages per second and the ratio."""
    start = time.perf_counter()
    plain_end_s = simpy_ring(256)
    per_message_s = (time.perf_counter() - start) / (256 * 510)
    assert np.isclose(plain_end_s, replay_ring(256), rtol=1e-9)
    print(f"plain SimPy, 256 ranks: {per_message_s * 1e6:.2f} us a message")
    for ranks in (1024, 16384):
        start = time.perf_counter()
        replay_ring(ranks)
        seconds = time.perf_counter() - start
        messages = ranks * 2 * (ranks - 1)
        peak_MiB = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        ratio = per_message_s * messages / seconds
        print(f"replay, {ranks:,} ranks: {seconds:.3f} s, {ratio:,.0f} times faster a message, peak memory {peak_MiB:.0f} MiB")


if __name__ == "__main__":
    main()
