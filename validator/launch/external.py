"""Ranks that torchrun or srun has started, on any number of machines; this process is one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from scaleproof.simulator.common.errors import RankError
from scaleproof.validator.launch import rank
from scaleproof.validator.launch.failure_watch import FailureWatch
from scaleproof.validator.launch.launch import JobOptions, RankResult, description
from scaleproof.validator.launch.rank_environment import ContactLostError
from scaleproof.validator.launch.rendezvous import Meeting

T = TypeVar("T")

# Most bytes that a rank keeps of what it recorded before a failure: torch's store takes values of up to 8 MiB.
_MOST_KEPT_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class ExternalRanks:
    """The ranks of a meeting, all of which run the same functions in the same order.

    count: number of the ranks that form a group; the others wait. patient: whether ranks wait for one another for as long as a
    function that reports no progress may run.
    """

    meeting: Meeting
    count: int
    patient: bool = False

    def first(self, count: int) -> ExternalRanks:
        """The first `count` ranks of the meeting; the others take no part."""
        return replace(self, count=count)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: JobOptions) -> list[RankResult]:
        """Like `Ranks.run`, on every rank with the same results or error; results are None on a rank that takes no part.

        Raises ContactLostError where ranks no longer respond, so that nothing more can be run.
        """
        place, store = self.meeting.place, self.meeting.new_group_store()
        recorded: list[bytes] = []
        failure: dict[str, Any] = {}
        everyones = [RankResult(None, b"")] * self.count

        def record(data: bytes) -> None:
            recorded.append(data)
            if options.progress is not None:
                options.progress(rank.here().status.activity.step)

        with FailureWatch(store) as watch:
            try:
                if place.rank < self.count:
                    rank.join(replace(place, ranks=self.count), store, options.timeout_s, options.accelerator, record)
                    # a rank that leaves before all have ended looks dead to its peers
                    everyones = rank.exchange(RankResult(function(*args), b"".join(recorded)))
            except Exception as error:
                failure = rank.failure(error)
                failure["by_peer"] |= watch.has_seen_failure
                watch.report()
                self.meeting.give("recorded", b"".join(recorded)[:_MOST_KEPT_BYTES])
            finally:
                rank.leave()
        patience_s = options.timeout_s if self.patient else 0.0
        self._raise_failure(self.meeting.agree(failure, patience_s), patience_s, options)
        return everyones

    def once(self, function: Callable[[], T], patience_s: float) -> T:
        """Calls `function` on rank 0; returns its result on every rank."""
        results = self.meeting.together(lambda: function() if self.meeting.place.rank == 0 else None, patience_s)
        result: T = results[0]
        return result

    def _raise_failure(self, failures: Sequence[Any], patience_s: float, options: JobOptions) -> None:
        """Raises RankError where a rank failed, blaming the cause rather than its victims, and keeps what ranks have recorded.

        failures: of each rank, empty without a failure, None if the rank did not report in time.
        """
        failed = [number for number, failure in enumerate(failures) if failure]
        if None in failures and all(failures[number]["by_peer"] for number in failed):
            self.meeting.check_all_there(failures, patience_s)
        if not failed:
            return
        number = min(failed, key=lambda number: (failures[number]["by_peer"], number))
        failure, keep = failures[number], options.keep
        text = description(number, options.names, "failed in", failure["activity"], f": {failure['text']}")
        if None in failures:
            raise ContactLostError(text)
        if keep is None or len(failed) < len(failures):
            raise RankError(text)
        raise RankError(text + self.once(lambda: keep([self.meeting.given("recorded", number) for number in failed], ()), 0.0))
