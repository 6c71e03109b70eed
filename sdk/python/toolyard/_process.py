"""Functions in processes of their own: they may hold the lock of Python, and are killed if their call is cancelled."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Any

from .content import Result, to_parts, to_piece
from .errors import Cancelled, DefinitionError, ToolError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ._execute import Execution
    from .app import Tool

_spawn = multiprocessing.get_context("spawn")
_lock = threading.Lock()
_idle: list[_Process] = []


class _Process:
    """A process that executes one call at a time."""

    def __init__(self) -> None:
        self.here, there = _spawn.Pipe()
        self.process = _spawn.Process(target=_serve, args=(there,), daemon=True)
        self.process.start()
        there.close()

    def kill(self) -> None:
        """Ends the process, in whatever its function does."""
        self.process.kill()


def run_in_process(execution: Execution) -> None:
    """Executes a call in a process, and waits for its end."""
    process = _take()
    execution.process = process
    tool = execution.tool
    try:
        execution.context.check()
        execution.tool.signature.arguments(execution.raw, execution.context, {})
        given = {name: execution.context.given(key) for name, (key, _, _) in tool.signature.given.items()}
        process.here.send((tool.function.__module__, tool.name, execution.raw, given))
        while (message := process.here.recv())[0] == "piece":
            execution.context.send_raw(*message[1])
    except (EOFError, OSError):
        execution.process = None
        process.process.join()
        if execution.call.cancelled:
            raise Cancelled("the call was stopped") from None
        raise ToolError(f"the process of {tool.name} died: exit code {process.process.exitcode}") from None
    except BaseException:
        process.kill()
        raise
    execution.process = None
    with _lock:
        _idle.append(process)
    if message[0] == "complete":
        execution.call.complete(message[1], message[2])
    else:
        execution.call.fail(*message[1:])


def _take() -> _Process:
    with _lock:
        while _idle:
            process = _idle.pop()
            if process.process.is_alive():
                return process
    return _Process()


def _serve(connection: Connection) -> None:
    """The work of such a process."""
    import signal

    # A stop of the worker is its parent's business, which lets calls end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getcwd() not in __import__("sys").path:
        __import__("sys").path.insert(0, os.getcwd())
    while True:
        try:
            module, name, raw, given = connection.recv()
        except (EOFError, OSError):
            return
        recorder = _Recorder(connection, given)
        try:
            tool = _find(module, name)
            value = tool.function(**tool.signature.arguments(raw, recorder, {}))  # type: ignore[arg-type]
            result = _stream(connection, value) if tool.kind.streams else value
            recorder.complete(*to_parts(result))
        except BaseException as error:
            from ._execute import fail

            fail(recorder, name, error)  # type: ignore[arg-type]


def _find(module: str, name: str) -> Tool:
    from .app import App

    for value in vars(importlib.import_module(module)).values():
        if isinstance(value, App) and name in value.tools:
            return value.tools[name]
    raise DefinitionError(f"the module {module} has no app with the tool {name}: a process imports it again")


def _stream(connection: Connection, pieces: Any) -> Any:
    result = None
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return result if end.value is None else end.value
        if isinstance(piece, Result):
            result = piece
        else:
            connection.send(("piece", to_piece(piece)))


class _Recorder:
    """A call, as far as a process knows it."""

    def __init__(self, connection: Connection, given: dict[str, Any]) -> None:
        self._connection = connection
        self._given = given

    def given(self, key: str, default: Any = None) -> Any:
        """The caller's value."""
        value = self._given.get(key)
        return default if value is None else value

    def complete(self, parts: Any, state: Any) -> None:
        """The function returned."""
        self._connection.send(("complete", parts, state))

    def fail(self, kind: str, message: str, retry: Any, violations: Any) -> None:
        """The function raised."""
        self._connection.send(("fail", kind, message, retry, violations))
