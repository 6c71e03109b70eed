"""Executes calls: async functions in an event loop, others on threads or in processes."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from ._bridge import Late, LoopThread
from ._process import Processes
from ._threads import Threads
from .app import App, Kind, Tool
from .content import Result, to_parts, to_piece
from .context import Context
from .errors import Cancelled, ToolError
from .resources import Lifespan

if TYPE_CHECKING:
    from ._native import Call, Table
    from ._process import Process

_log = logging.getLogger("toolyard")

#: Pieces after which a stream lets other calls of the event loop go on.
_PIECES_AT_ONCE = 64
#: A loop that does not answer for so long is blocked by a function, in seconds.
_BLOCKED_S = 1.0
#: After so many seconds a cancelled function that still runs is reported.
_STUBBORN_S = 5.0
#: How long functions may clean up when their worker ends, in seconds.
_CLEAN_UP_S = 2.0
#: How long their loop may take to let them do so, and then to close the resources, in seconds.
_CLOSE_S = 10.0
#: The kinds of errors that a tool may raise.
_KINDS = ("tool_failed", "arguments_invalid", "model_retry", "needs_input", "rate_limited")


def host(table: Table, tool: Tool, start: Callable[[Call, bytes], object]) -> None:
    """Adds a tool to a table."""
    table.host(tool.name, json.dumps(tool.schema), json.dumps(tool.about), start)


class Runner:
    """Executes the calls of an app's tools."""

    def __init__(self, app: App) -> None:
        from ._native import Table

        self.app = app
        self.thread = LoopThread("toolyard-tools")
        self.loop = self.thread.loop
        self.threads = Threads("toolyard-tool")
        self.processes = Processes()
        self.lifespan = Lifespan(app.resources)
        self.table = Table()
        #: Async functions that run. An event loop alone does not keep them alive.
        self.tasks: set[asyncio.Task[None]] = set()
        self._begun: deque[Callable[[], None]] = deque()
        self._is_woken = False
        self._closed = threading.Event()
        for tool in app.tools.values():
            host(self.table, tool, self._starter(tool))

    def open(self) -> None:
        """Makes the resources."""
        self.thread.run(self.lifespan.open())
        threading.Thread(target=self._watch, name="toolyard-watch", daemon=True).start()

    def close(self) -> None:
        """Ends functions that still run, closes the resources and ends the threads."""
        self._closed.set()
        self.processes.end()
        try:
            self.thread.run(self._end_tasks(), _CLOSE_S)
            self.thread.run(self.lifespan.close(), _CLOSE_S)
            self.thread.run(self.loop.shutdown_asyncgens(), _CLOSE_S)
        except Late as late:
            _log.warning("functions or resources are left as they are, because %s\n%s", late, self._stack())
        finally:
            self.thread.stop(_CLEAN_UP_S)

    async def _end_tasks(self) -> None:
        """Lets functions clean up, before the resources that they use are closed."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_CLEAN_UP_S)

    def _starter(self, tool: Tool) -> Callable[[Call, bytes], Execution]:
        make = _Blocking if tool.kind.blocks else _Async

        def start(call: Call, arguments: bytes) -> Execution:
            execution = make(self, tool, call, arguments)
            execution.begin()
            return execution

        return start

    def post(self, begin: Callable[[], None]) -> None:
        """Runs a function in the event loop. Many are run for one wake-up, which costs a system call."""
        self._begun.append(begin)
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._is_woken = False
        while self._begun:
            self._begun.popleft()()

    def _watch(self) -> None:
        """Warns of functions that block the event loop. Leases are kept meanwhile, but other calls wait."""
        while not self._closed.wait(_BLOCKED_S):
            answered = threading.Event()
            try:
                self.loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return
            if answered.wait(_BLOCKED_S) or self._closed.is_set():
                continue
            _log.warning(
                "the event loop of tools is blocked: a function that blocks should not be async\n%s", self._stack()
            )
            answered.wait()

    def _stack(self) -> str:
        import sys
        import traceback

        frame = sys._current_frames().get(self.thread.thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-4:]) if frame else ""


class Execution:
    """One execution of a call."""

    #: The process that executes it, if it is one of its own.
    process: Process | None = None

    def __init__(self, runner: Runner, tool: Tool, call: Call, arguments: bytes) -> None:
        self.runner = runner
        self.tool = tool
        self.call = call
        self.raw = arguments
        self.context = Context(call, tool.kind.blocks)

    def begin(self) -> None:
        """Begins it, on any thread."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The call should stop. Called on any thread, at most once."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """The arguments of the function."""
        return self.tool.signature.arguments(self.raw, self.context, self.runner.lifespan.values)

    def complete(self, value: Any) -> None:
        """The function returned."""
        try:
            self.call.complete(*to_parts(value))
        except BaseException as error:
            self.fail(TypeError(f"the result of {self.tool.name} cannot be converted: {_text(error)}"))

    def fail(self, error: BaseException) -> None:
        """The function raised."""
        fail(self.call, self.tool.name, error)


def fail(call: Call, tool: str, error: BaseException) -> None:
    """Ends a call with an exception, whatever its author has made of it."""
    try:
        if isinstance(error, ToolError):
            kind = error.kind if error.kind in _KINDS else "tool_failed"
            violations = [(_clean(path), _clean(message)) for path, message in error.violations]
            call.fail(kind, _text(error), (error.retryable, error.after), violations)
            return
        if isinstance(error, (Cancelled, asyncio.CancelledError)):
            call.fail("tool_failed", "the call was stopped", (False, None), [])
            return
        _log.warning("tool %s failed", tool, exc_info=error)
        call.fail("tool_failed", _text(error), (False, None), [])
    except BaseException as unfit:
        # Also `sys.exit` in the text of an exception, which would end the event loop.
        _log.warning("the error of tool %s cannot be passed on as it is: %s", tool, _text(unfit))
        call.fail("tool_failed", _text(error), (False, None), [])


def _text(error: BaseException) -> str:
    """What an exception says; the texts of some exceptions raise themselves."""
    kind = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        return kind
    if isinstance(error, ToolError):
        return _clean(text)
    return _clean(f"{kind}: {text}" if text else kind)


def _clean(text: str) -> str:
    """The text in Unicode: halves of surrogate pairs, as of undecodable names of files, are replaced."""
    return text.encode("utf-8", "replace").decode()


class _Async(Execution):
    task: asyncio.Task[None] | None = None
    is_cancelled = False

    def begin(self) -> None:
        self.runner.post(self._begin)

    def _begin(self) -> None:
        self.task = self.runner.loop.create_task(self._run())
        self.runner.tasks.add(self.task)
        self.task.add_done_callback(self.runner.tasks.discard)
        if self.is_cancelled:
            self.task.cancel()

    def cancel(self) -> None:
        self.is_cancelled = True
        self.runner.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
            self.runner.loop.call_later(_STUBBORN_S, self._report, time.monotonic())

    def _report(self, since: float) -> None:
        if self.task is not None and not self.task.done():
            waited = time.monotonic() - since
            _log.warning(
                "tool %s was cancelled %.0f s ago and still runs: let CancelledError pass", self.tool.name, waited
            )

    async def _run(self) -> None:
        try:
            made = self.tool.function(**self.arguments())
            if self.tool.kind is Kind.ASYNC_STREAM:
                value = await self._stream(made)
            else:
                value = await made if inspect.isawaitable(made) else made
        except BaseException as error:
            # Also `sys.exit`, which would end the event loop, and so the calls of all others.
            self.fail(error)
        else:
            self.complete(value)

    async def _stream(self, pieces: AsyncIterator[Any]) -> Any:
        say = self.call.say
        count, result = 0, None
        try:
            async for piece in pieces:
                if isinstance(piece, Result):
                    result = piece
                    continue
                kind, channel, payload = to_piece(piece)
                count += 1
                if not say(kind, channel, payload):
                    await self.context.send_raw(kind, channel, payload)
                elif count % _PIECES_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()
        return result


class _Blocking(Execution):
    def begin(self) -> None:
        self.runner.threads.submit(self._run)

    def cancel(self) -> None:
        # A function that blocks looks at its context; a process is killed.
        if self.process is not None:
            self.process.kill()

    def _run(self) -> None:
        try:
            self.context.check()
            if self.tool.process:
                from ._process import run_in_process

                run_in_process(self)
                return
            made = self.tool.function(**self.arguments())
            value = self._stream(made) if self.tool.kind is Kind.BLOCKING_STREAM else made
        except BaseException as error:
            self.fail(error)
        else:
            self.complete(value)

    def _stream(self, pieces: Iterator[Any]) -> Any:
        result = None
        try:
            while True:
                self.context.check()
                try:
                    piece = next(pieces)
                except StopIteration as end:
                    return result if end.value is None else end.value
                if isinstance(piece, Result):
                    result = piece
                else:
                    self.context.send_raw(*to_piece(piece))
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
