"""How answers of the native part become futures, and the threads with event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from .errors import from_native

T = TypeVar("T")
Start = Callable[[Callable[[Any, "str | None"], object]], object]


class Pending(Generic[T]):
    """An answer that may not be there yet: ``await`` it, or call :meth:`result` in a function that is not async."""

    __slots__ = ("_future",)

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, T]:
        if self._future.done():
            return self._future.result()
        return (yield from asyncio.wrap_future(self._future).__await__())

    def result(self, timeout: float | None = None) -> T:
        """Blocks until the answer is there."""
        return self._future.result(timeout)


def pending(start: Start) -> Pending[Any]:
    """Begins something of the native part."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    work = start(partial(_settle, future))
    cancel = getattr(work, "cancel", None)
    if cancel is not None:
        # Who waits may give up.
        future.add_done_callback(lambda ended: cancel() if ended.cancelled() else None)
    return Pending(future)


def _settle(future: concurrent.futures.Future[Any], value: Any, error: str | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(from_native(error))


def settled(value: T) -> Pending[T]:
    """An answer that is there."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_result(value)
    return Pending(future)


async def wait(start: Start) -> Any:
    """Begins something of the native part and awaits its answer in the running event loop."""
    return await begin(start)


def begin(start: Start) -> asyncio.Future[Any]:
    """Begins something of the native part; the future, of the running event loop, does not keep it alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def done(value: Any, error: str | None) -> None:
        loop.call_soon_threadsafe(_settle_async, future, value, error)

    start(done)
    return future


def _settle_async(future: asyncio.Future[Any], value: Any, error: str | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(from_native(error))


class Late(Exception):
    """A coroutine took too long."""


class LoopThread:
    """A thread with an event loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Runs a coroutine there and waits for it; it is cancelled if the wait is interrupted.

        :class:`Late` is raised if it does not end in so many seconds.
        """
        if threading.current_thread() is self.thread:
            work.close()
            raise RuntimeError("this would wait for itself: use the async form here")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            if timeout is not None and not concurrent.futures.wait([future], timeout).done:
                raise Late(f"it did not end in {timeout:g} s")
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, timeout: float | None = None) -> None:
        """Stops the loop and its thread. One that is blocked for so many seconds is left behind."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout)
        if not self.thread.is_alive():
            self.loop.close()


_client_loop: LoopThread | None = None
_lock = threading.Lock()


def client_loop() -> LoopThread:
    """The thread of clients that are not async. It lives as long as the process."""
    global _client_loop
    with _lock:
        if _client_loop is None:
            _client_loop = LoopThread("toolyard-client")
        return _client_loop
