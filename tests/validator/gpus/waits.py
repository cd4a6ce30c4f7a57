"""What the streams and threads of a rank wait for.

Nothing waits on a GPU that does not exist, so that waiting is followed: each stream and thread has the kernels, by number, that
must be complete before what it does next. Events, futures, queues and host waits pass these on as they do on a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from scaleproof.simulator.captured.record import EventKind
from scaleproof.validator.capture.backend.streams import EventBase
from scaleproof.validator.capture.context import ScriptContext
from scaleproof.validator.capture.trace import RankTrace

Kernels = frozenset[int]
# Streams of callbacks, which begin where those that scripts make do not get to.
_CALLBACKS = 1_000_000


class Waits(RankTrace):
    """Follows waiting in place of a record. until_complete: returns once kernels are complete, for threads that wait."""

    def __init__(self, context: ScriptContext) -> None:
        super().__init__(context)
        self.until_complete: Callable[[Kernels], object] = lambda _: None
        self._streams: defaultdict[int, Kernels] = defaultdict(frozenset)
        self._events: dict[int, Kernels] = {}
        self._thread = _OfThread()
        self._callback_streams = itertools.count(_CALLBACKS)

    def add(self, kind: EventKind, place: Any = None, **columns: Any) -> None:
        """Follows an event that concerns waiting."""
        stream = columns.get("stream", self.context.stream)
        if kind is EventKind.EVENT_RECORD:
            self._events[columns["event"]] = self.of_stream(stream)
        elif kind is EventKind.EVENT_WAIT:
            self.stream_waits(self._events.get(columns["event"], frozenset()), stream)
        elif kind is EventKind.STREAM_WAIT:
            self.stream_waits(self._streams[columns["other_stream"]], stream)
        elif kind is EventKind.ITEM:
            self.thread_waits(self._streams[stream])
        elif kind is EventKind.SYNCHRONIZE:
            self.thread_waits(self._synchronized(columns.get("event"), columns.get("other_stream")))

    def _synchronized(self, event: int | None, stream: int | None) -> Kernels:
        if event is not None:
            return self._events.get(event, frozenset())
        if stream is not None:
            return self._streams[stream]
        return frozenset().union(*list(self._streams.values()))

    @property
    def of_thread(self) -> Kernels:
        """What this thread waits for."""
        return self._thread.kernels

    def of_stream(self, stream: int | None = None) -> Kernels:
        """What a stream, or the current one, waits for before what this thread launches next."""
        return self._streams[self.context.stream if stream is None else stream] | self._thread.kernels

    def stream_waits(self, kernels: Kernels, stream: int | None = None) -> None:
        """A stream, or the current one, waits for kernels."""
        self._streams[self.context.stream if stream is None else stream] |= kernels

    def thread_waits(self, kernels: Kernels) -> None:
        """This thread waits for kernels."""
        self.until_complete(kernels - self._thread.kernels)
        self._thread.kernels |= kernels

    @contextlib.contextmanager
    def callback(self, kernels: Kernels) -> Iterator[None]:
        """A context in which torch calls back: with a stream of its own that waits for the kernels of a future."""
        before, self.context.stream = self.context.stream, next(self._callback_streams)
        self.stream_waits(kernels)
        try:
            yield
        finally:
            self.context.stream = before


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.kernels: Kernels = frozenset()


class _Passed(NamedTuple):
    """What a stream and the thread of whoever passes something on waited for."""

    stream: Kernels
    thread: Kernels


class Futures:
    """Follows waiting through the futures of torch."""

    def __init__(self, waits: Waits, runs: Callable[[Callable[[], object]], object]) -> None:
        """runs: runs a callback in the thread in which the backend completes futures."""
        self._waits, self._runs = waits, runs
        # futures are kept, so that no other has the same identifier
        self._passed: dict[int, tuple[Any, _Passed]] = {}

    def complete(self, future: Any, kernels: Kernels) -> None:
        """Has a future wait for kernels."""
        self._passed[id(future)] = (future, _Passed(kernels, frozenset()))

    def install(self) -> None:
        """Replaces methods of futures."""
        future: Any = torch._C.Future
        set_result, wait, then, done = future.set_result, future.wait, future.then, future.add_done_callback
        waits = self._waits

        def passed(of: Any) -> _Passed:
            return self._passed.get(id(of), (None, _Passed(frozenset(), frozenset())))[1]

        def setting(of: Any, result: Any) -> None:
            self._passed[id(of)] = (of, _Passed(waits.of_stream(), waits.of_thread))
            set_result(of, result)

        def waiting(of: Any) -> Any:
            result = wait(of)
            waits.stream_waits(passed(of).stream)
            waits.thread_waits(passed(of).thread)
            return result

        def after(of: Any, call: Callable[[Any], Any]) -> Any:
            def called(_: Any) -> Any:
                with waits.callback(passed(of).stream):
                    return self._runs(lambda: call(of))

            following = then(of, called)
            self._passed[id(following)] = (following, passed(of))
            return following

        def finally_(of: Any, call: Callable[[Any], Any]) -> None:
            def called(_: Any) -> None:
                with waits.callback(passed(of).stream):
                    self._runs(lambda: call(of))

            done(of, called)

        for name, function in (("set_result", setting), ("wait", waiting), ("then", after), ("add_done_callback", finally_)):
            setattr(future, name, function)


def follow_threads(waits: Waits) -> None:
    """Follows waiting from thread to thread: through queues, events of threads, and the starts of threads."""

    class Queue(queue.SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put((item, waits.of_thread))

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            item, kernels = super().get(block, timeout)
            waits.thread_waits(kernels)
            return item

    original = queue.SimpleQueue
    for name, module in list(sys.modules.items()):
        if name == "queue" or (name.startswith("scaleproof.") and getattr(module, "SimpleQueue", None) is original):
            module.SimpleQueue = Queue  # type: ignore[attr-defined]
    _follow_events(waits)


def _follow_events(waits: Waits) -> None:
    event: Any = threading.Event
    set_event, wait = event.set, event.wait

    def setting(of: Any) -> None:
        of.kernels = waits.of_thread
        set_event(of)

    def waiting(of: Any, timeout: float | None = None) -> Any:
        result = wait(of, timeout)
        waits.thread_waits(getattr(of, "kernels", frozenset()))
        return result

    event.set, event.wait = setting, waiting


class _CurrentDevice(threading.local):
    def __init__(self) -> None:
        self.index = 0


def check_devices(own: int) -> None:
    """Follows the current device of each thread, which is the first one in new threads, and refuses events of others than the
    rank's own. Streams and nodes of autograd make a device current."""
    current = _CurrentDevice()
    record = EventBase.record
    stream_context = torch.cuda.stream

    def set_device(device: Any) -> None:
        current.index = torch.device("cuda", device).index if isinstance(device, int) else torch.device(device).index

    @contextlib.contextmanager
    def stream(of: Any) -> Iterator[None]:
        before = current.index
        if of is not None:
            current.index = of.device_index
        with stream_context(of):
            yield
        current.index = before

    def recorded(event: Any, on: Any = None) -> None:
        is_autograds = torch._C._current_graph_task_id() >= 0
        if on is None and current.index != own and not is_autograds:
            raise RuntimeError(f"an event of cuda:{own} is recorded in a thread whose device is cuda:{current.index}")
        record(event, on)

    torch.cuda.set_device, torch.cuda.stream = set_device, stream  # type: ignore[assignment]
    EventBase.record = recorded  # type: ignore[method-assign, assignment]
