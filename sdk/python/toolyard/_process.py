"""Functions in processes of their own: they may hold the lock of Python, and are killed if their call is cancelled."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from .content import Result, to_parts, to_piece
from .errors import Cancelled, DefinitionError, ToolError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ._execute import Execution
    from .app import Tool

#: A stop of the worker is its own business; terminals and supervisors send these to all of its processes.
_STOPS = (signal.SIGINT, signal.SIGTERM)


class Process:
    """A process that executes one call at a time."""

    def __init__(self) -> None:
        import multiprocessing
        from multiprocessing import resource_tracker

        spawn = multiprocessing.get_context("spawn")
        self.here, there = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(there,), daemon=True)
        # It inherits what is blocked, until it has its handlers. The tracker would unblock them when it starts.
        resource_tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        there.close()

    def kill(self) -> None:
        """Ends the process, in whatever its function does."""
        self.process.kill()


class Processes:
    """The processes of a worker. They are killed at its end, because they do not stop by themselves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[Process] = set()
        self._idle: list[Process] = []
        self._has_ended = False

    def take(self) -> Process:
        """A process that executes nothing else."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.process.is_alive():
                    return process
                self._all.discard(process)
        process = Process()
        with self._lock:
            if not self._all:
                # Before that of multiprocessing, which would wait for them.
                atexit.register(self.end)
            self._all.add(process)
            if self._has_ended:
                process.kill()
        return process

    def give(self, process: Process) -> None:
        """A process that has executed its call."""
        with self._lock:
            self._idle.append(process)

    def drop(self, process: Process) -> None:
        """A process that has ended."""
        with self._lock:
            self._all.discard(process)

    def end(self) -> None:
        """Kills all of them."""
        with self._lock:
            self._has_ended = True
            for process in self._all:
                process.kill()
            self._all.clear()
            self._idle.clear()
        atexit.unregister(self.end)


def run_in_process(execution: Execution) -> None:
    """Executes a call in a process, and waits for its end."""
    processes = execution.runner.processes
    process = processes.take()
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
        processes.drop(process)
        if execution.call.cancelled:
            raise Cancelled("the call was stopped") from None
        raise ToolError(f"the process of {tool.name} died: exit code {process.process.exitcode}") from None
    except BaseException:
        process.kill()
        processes.drop(process)
        raise
    execution.process = None
    processes.give(process)
    if message[0] == "complete":
        execution.call.complete(message[1], message[2])
    else:
        execution.call.fail(*message[1:])


def _serve(connection: Connection) -> None:
    """The work of such a process."""
    for number in _STOPS:
        # Not ignored, because the programs that functions start would inherit that.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
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
