"""Functions in processes of their own: they and the programs that they start end with their call and their worker."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Host, turn

import toolyard
from toolyard import App, Output, Text
from toolyard._process import Process, Processes

APP = """
    import ctypes, os, subprocess, time
    from toolyard import App

    app = App("{pool}")

    @app.tool(name="{pool}_starts", process=True)
    def starts():
        "Starts a program, tells the processes, and holds the interpreter's lock if it is to."
        program = subprocess.Popen(["sleep", "60"])
        yield f"{{os.getpid()}} {{program.pid}}"
        {waits}
"""

app = App()


@app.tool(process=True)
def starts(exits: bool) -> Iterator[str]:
    """Start a program, tell the processes, and wait or exit."""
    program = subprocess.Popen(["sleep", "60"])
    yield f"{os.getpid()} {program.pid}"
    if exits:
        os._exit(7)
    time.sleep(60)


@app.tool(process=True)
def gated(gate: str) -> Generator[str, None, str]:
    """Tell that it has begun, and end when a line is written to the gate."""
    yield "begun"
    with open(gate) as lines:
        return lines.readline()


def ends(pid: int) -> bool:
    """Whether a process ends within 10 s. It need not be a child of this one."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(process):
        return bool(select.select([process], [], [], 10)[0])


def processes(piece: object) -> list[int]:
    """The processes that a function has told."""
    assert isinstance(piece, (Text, Output))
    return [int(pid) for pid in piece.text.split()]


WITHOUT_SIGNALS_OF_PIPES = "import fcntl\nvars(fcntl).pop('F_SETSIG', None)\n"


@pytest.mark.parametrize(
    ("pool", "waits", "site"),
    [
        ("orphans", "time.sleep(60)", ""),
        ("orphans_that_hold_the_lock", "ctypes.PyDLL(None).sleep(60)", ""),
        ("orphans_on_other_platforms", "time.sleep(60)", WITHOUT_SIGNALS_OF_PIPES),
    ],
)
def test_a_worker_that_is_killed_takes_its_functions_and_their_programs_with_it(
    host: Host,
    client: toolyard.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pool: str,
    waits: str,
    site: str,
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(site)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    worker = host(APP.format(pool=pool, waits=waits))
    running, found = client.turn(turn((f"{pool}_starts", {})), timeout=60), list[int]()
    for event in running:
        if isinstance(event, Output):
            found = processes(event)
            break
    worker.kill()
    assert [ends(pid) for pid in found] == [True, True]
    running.cancel()


def test_a_call_that_is_cancelled_takes_the_programs_of_its_function_with_it() -> None:
    with app.test_client() as client:
        running = client.start("starts", exits=False)
        found = processes(next(iter(running)))
        running.cancel()
        ended = running.end()
        assert ended.error is not None
        assert ended.error.message == "the call was stopped"
        assert [ends(pid) for pid in found] == [True, True]


def test_a_function_that_exits_takes_its_programs_with_it() -> None:
    with app.test_client() as client:
        ended = client.call("starts", exits=True)
        assert ended.error is not None
        assert "died: exit code 7" in ended.error.message
        assert [ends(pid) for pid in processes(ended.output[0])] == [True, True]


def test_a_cancellation_that_comes_too_late_does_not_kill_the_process_of_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing, given_back, next_has_begun, killed = (threading.Event() for _ in range(4))
    kill, give = Process.kill, Processes.give

    def kill_late(process: Process) -> None:
        killing.set()
        # Until this has ended, no other call gets the process, so the wait times out.
        next_has_begun.wait(1)
        kill(process)
        killed.set()

    def give_and_tell(*arguments: Any) -> None:
        give(*arguments)
        given_back.set()

    monkeypatch.setattr(Process, "kill", kill_late)
    monkeypatch.setattr(Processes, "give", give_and_tell)
    gates = [tmp_path / "first", tmp_path / "second"]
    for gate in gates:
        os.mkfifo(gate)
    # Opened in this way, a write does not wait for a reader.
    first, second = (gate.open("r+b", buffering=0) for gate in gates)
    with first, second, app.test_client() as client:
        cancelled = client.start("gated", gate=str(gates[0]))
        assert next(iter(cancelled)) == Text("begun")
        threading.Thread(target=cancelled.cancel).start()
        assert killing.wait(10)
        first.write(b"too late\n")
        assert given_back.wait(10)
        running = client.start("gated", gate=str(gates[1]))
        assert next(iter(running)) == Text("begun")
        next_has_begun.set()
        assert killed.wait(10)
        second.write(b"in time\n")
        assert running.end().value == "in time\n"
