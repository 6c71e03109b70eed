"""Threads for functions that block. A function that never returns does not keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

#: A thread without work ends after so many seconds.
_IDLE_S = 10.0


class Threads:
    """As many threads as functions run at once; the worker's slots bound their number."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._busy = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Runs a function, at once and on a thread of its own. It raises nothing."""
        with self._lock:
            self._busy += 1
            if self._idle:
                self._idle -= 1
                self._work.put(work)
                return
        threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True).start()

    @property
    def busy(self) -> int:
        """How many functions run."""
        return self._busy

    def _run(self, work: Callable[[], None]) -> None:
        while True:
            work()
            with self._lock:
                self._busy -= 1
                self._idle += 1
            next_work = self._next()
            if next_work is None:
                return
            work = next_work

    def _next(self) -> Callable[[], None] | None:
        """The next function for an idle thread, or nothing after a while."""
        try:
            return self._work.get(timeout=_IDLE_S)
        except queue.Empty:
            pass
        with self._lock:
            if self._idle > self._work.qsize():
                self._idle -= 1
                return None
        # It was given to an idle thread in the last moment, so one must stay for it.
        return self._work.get()
