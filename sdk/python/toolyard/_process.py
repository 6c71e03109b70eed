"""Functions in processes of their own: they may hold the lock of Python, and are killed if their call is cancelled."""

from __future__ import annotations

import atexit
import fcntl
import importlib
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .content import Result, to_parts, to_piece
from .errors import Cancelled, DefinitionError, ToolError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ._execute import Execution
    from .app import Tool

#: A stop of the worker is its own business; supervisors send these to all processes of a service.
_STOPS = (signal.SIGINT, signal.SIGTERM)


class Process:
    """A process that executes one call at a time. It has a session of its own, with the programs that it starts.

    All of them end with the call that is cancelled, and with the worker, even if the worker is killed.
    """

    def __init__(self) -> None:
        import multiprocessing
        from multiprocessing import resource_tracker

        spawn = multiprocessing.get_context("spawn")
        self.here, there = spawn.Pipe()
        #: It closes when the worker ends, however that happens.
        worker, self._worker = spawn.Pipe(duplex=False)
        self.was_killed = False
        self.process = spawn.Process(target=_serve, args=(there, worker), daemon=True)
        # It inherits what is blocked, until it has its handlers. The tracker would unblock them when it starts.
        resource_tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        there.close()
        worker.close()

    def kill(self) -> None:
        """Ends the process and the programs that it started, in whatever they do."""
        self.was_killed = True
        assert self.process.pid is not None
        # Before it has a group of its own, it has started no program. macOS refuses a group that has ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


class Processes:
    """The processes of a worker. They are killed at its end, because they do not stop by themselves.

    The process of an execution is set, removed and killed under one lock, so that a late cancellation does not kill the
    process of another call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[Process] = set()
        self._idle: list[Process] = []
        self._has_ended = False

    def take(self, execution: Execution) -> Process:
        """Gives an execution a process that executes nothing else."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.process.is_alive():
                    execution.process = process
                    return process
                self._all.discard(process)
        process = Process()
        with self._lock:
            if not self._all:
                # Before that of multiprocessing, which would wait for them.
                atexit.register(self.end)
            self._all.add(process)
            execution.process = process
            if self._has_ended:
                process.kill()
        return process

    def give(self, execution: Execution, process: Process) -> None:
        """Takes the process back from an execution that has ended."""
        with self._lock:
            execution.process = None
            if process.was_killed:
                self._all.discard(process)
            else:
                self._idle.append(process)

    def drop(self, execution: Execution, process: Process) -> None:
        """Kills the process of an execution that cannot end, and the programs of one that has ended by itself."""
        with self._lock:
            execution.process = None
            process.kill()
            self._all.discard(process)

    def stop(self, execution: Execution) -> None:
        """Kills the process of an execution, if it has one."""
        with self._lock:
            if execution.process is not None:
                execution.process.kill()

    def end(self) -> None:
        """Kills all of them."""
        with self._lock:
            self._has_ended = True
            for process in self._all:
                # The id of one that ended long ago may be that of another process by now.
                if process.process.is_alive():
                    process.kill()
            self._all.clear()
            self._idle.clear()
        atexit.unregister(self.end)


def run_in_process(execution: Execution) -> None:
    """Executes a call in a process, and waits for its end."""
    processes = execution.runner.processes
    process = processes.take(execution)
    tool = execution.tool
    try:
        execution.context.check()
        execution.tool.signature.arguments(execution.raw, execution.context, {})
        given = {name: execution.context.given(key) for name, (key, _, _) in tool.signature.given.items()}
        process.here.send((tool.function.__module__, tool.name, execution.raw, given))
        while (message := process.here.recv())[0] == "piece":
            execution.context.send_raw(*message[1])
    except (EOFError, OSError):
        # Its group is killed before the process is joined, because its id is free for others afterwards.
        processes.drop(execution, process)
        process.process.join()
        if execution.call.cancelled:
            raise Cancelled("the call was stopped") from None
        raise ToolError(f"the process of {tool.name} died: exit code {process.process.exitcode}") from None
    except BaseException:
        processes.drop(execution, process)
        raise
    processes.give(execution, process)
    if message[0] == "complete":
        execution.call.complete(message[1], message[2])
    else:
        execution.call.fail(*message[1:])


def _end_with(worker: Connection) -> None:
    """Has the processes of this group killed when the worker ends, and with it its end of a pipe."""
    try:
        # Linux sends the signal by itself, so it also reaches a function that holds Python's lock. PR_SET_PDEATHSIG
        # would be no alternative: it is sent when the worker's thread ends, and to one process only.
        fcntl.fcntl(worker, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(worker, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(worker, fcntl.F_SETFL, fcntl.fcntl(worker, fcntl.F_GETFL) | os.O_ASYNC)
    except (AttributeError, OSError):
        threading.Thread(target=_await_end, args=(worker,), daemon=True).start()
    else:
        if worker.poll():
            # It ended before the signal was set up.
            os.killpg(0, signal.SIGKILL)


def _await_end(worker: Connection) -> None:
    with suppress(EOFError):
        worker.recv_bytes()
    os.killpg(0, signal.SIGKILL)


def _serve(connection: Connection, worker: Connection) -> None:
    """The work of such a process."""
    os.setsid()
    _end_with(worker)
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
