"""Executes calls: async functions in an event loop, others on threads or in processes."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
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
    from ._native import Call
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


def host(tool: Tool, add: Callable[[str], None]) -> None:
    """Adds a tool to a table by its declaration."""
    names = {name: _shared(name) for name in tool.about}
    try:
        add(json.dumps(_declared(tool, names)))
    except ValueError as error:
        text = str(error)
        for name, shared in names.items():
            text = re.sub(rf"\b{re.escape(shared)}\b", name, text)
        raise ValueError(f"tool {tool.name} cannot be hosted: {text}") from None


def _shared(name: str) -> str:
    """The name of an option in the declarations that the libraries of all languages share."""
    if name == "concurrency":
        return "maxConcurrent"
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _declared(tool: Tool, names: dict[str, str]) -> dict[str, Any]:
    about = dict(tool.about)
    alone = about.pop("runs_alone", None)
    about["aliases"] = [{"name": name, "description": text} for name, text in about.get("aliases", ())]
    for name in ("output_schema", "exclusive_when", "parallel_when"):
        if text := about.pop(name, None):
            about[name] = json.loads(text)
    declared = {names.get(name, name): value for name, value in about.items()}
    if alone is not None:
        declared["concurrency"] = "exclusive" if alone else "parallel"
    return {**declared, "name": tool.name, "inputSchema": tool.schema}


class Runner:
    """Executes the calls of an app's tools."""

    def __init__(self, app: App) -> None:
        from ._native import Inbox, Table

        self.app = app
        self.thread = LoopThread("toolyard-tools")
        self.loop = self.thread.loop
        self.threads = Threads("toolyard-tool")
        self.processes = Processes()
        self.lifespan = Lifespan(app.resources)
        self.table = Table()
        #: The calls of async functions.
        self.inbox = Inbox()
        #: Async functions that run, by the keys of their calls. An event loop alone does not keep them alive.
        self.running: dict[int, _Async] = {}
        self._tools = list(app.tools.values())
        self._closed = threading.Event()
        for number, tool in enumerate(self._tools):
            if tool.kind.blocks:
                host(tool, partial(self.table.host, start=self._starter(tool)))
            else:
                host(tool, partial(self.table.host_in_loop, inbox=self.inbox, tool=number))

    def open(self) -> None:
        """Makes the resources, and takes calls."""
        self.thread.run(self._open())
        threading.Thread(target=self._watch, name="toolyard-watch", daemon=True).start()

    async def _open(self) -> None:
        await self.lifespan.open()
        self.loop.add_reader(self.inbox.fileno(), self._take)

    def _take(self) -> None:
        """Begins the calls that came, and stops those that should stop."""
        begun, stopping = self.inbox.take()
        for key, tool, call, arguments in begun:
            self.running[key] = _Async(self, self._tools[tool], call, arguments)
            self.running[key].begin(key)
        for key in stopping:
            if key in self.running:
                self.running[key].cancel(key)

    def close(self) -> None:
        """Ends functions that still run, closes the resources and ends the threads."""
        self._closed.set()
        self.inbox.close()
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
        tasks = [execution.task for execution in self.running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLEAN_UP_S)

    def _starter(self, tool: Tool) -> Callable[[Call, bytes], _Blocking]:
        def start(call: Call, arguments: bytes) -> _Blocking:
            execution = _Blocking(self, tool, call, arguments)
            self.threads.submit(execution.run)
            return execution

        return start

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

    #: The process that executes it, if it is one of its own. It belongs to `Processes`, and its lock guards it.
    process: Process | None = None

    def __init__(self, runner: Runner, tool: Tool, call: Call, arguments: bytes) -> None:
        self.runner = runner
        self.tool = tool
        self.call = call
        self.raw = arguments
        self.context = Context(call, tool.kind.blocks)

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
    task: asyncio.Task[None]

    def begin(self, key: int) -> None:
        """Begins it, in the event loop."""
        self.task = self.runner.loop.create_task(self._run(key))

    def cancel(self, key: int) -> None:
        """The call should stop. Called in the event loop, at most once."""
        self.task.cancel()
        self.task.add_done_callback(lambda _: self._end_stopped(key))
        self.runner.loop.call_later(_STUBBORN_S, self._report, time.monotonic())

    def _end_stopped(self, key: int) -> None:
        # A function that had not begun when it was cancelled did not run at all. Any other has ended its call.
        self.runner.running.pop(key, None)
        self.fail(asyncio.CancelledError())

    def _report(self, since: float) -> None:
        if not self.task.done():
            waited = time.monotonic() - since
            _log.warning(
                "tool %s was cancelled %.0f s ago and still runs: let CancelledError pass", self.tool.name, waited
            )

    async def _run(self, key: int) -> None:
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
        self.runner.running.pop(key, None)

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
    def cancel(self) -> None:
        """The call should stop. Called on any thread, at most once."""
        # A function that blocks looks at its context; a process is killed.
        self.runner.processes.stop(self)

    def run(self) -> None:
        """Executes it, on a thread of its own."""
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
