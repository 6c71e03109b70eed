"""A real Toolyard, and workers of Python apps as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import toolyard


class Worker:
    """A worker of an app, started as its author starts it."""

    def __init__(self, folder: Path, nats_url: str, *options: str) -> None:
        environment = {**os.environ, "TOOLYARD_NATS_URL": nats_url}
        command = [str(Path(sys.executable).with_name("toolyard-py")), "run", "app:app", "-o", "json", *options]
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker ended before it was ready: {self.log.read_text()}"
        self.ready: dict[str, Any] = json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Yard:
    """A running Toolyard."""

    def __init__(self, folder: Path) -> None:
        self.program = os.environ["TOOLYARD_PROGRAM"]
        command = [self.program, "dev", "--listen", "127.0.0.1:0", "-o", "json"]
        with (folder / "dev.log").open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.url: str = said["url"]
        self.nats_url: str = said["nats_url"]

    def run(self, *arguments: str) -> str:
        """Runs the program `toolyard` against it."""
        environment = {**os.environ, "TOOLYARD_URL": self.url}
        done = subprocess.run(
            [self.program, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    running = Yard(tmp_path_factory.mktemp("yard"))
    yield running
    running.stop()


@pytest.fixture
def client(yard: Yard) -> toolyard.Client:
    return toolyard.Client(yard.url)


Host = Callable[..., Worker]


@pytest.fixture
def host(yard: Yard, tmp_path: Path) -> Iterator[Host]:
    """Hosts the app of a source text, in the test's folder."""
    workers: list[Worker] = []

    def start(source: str | None = None, *options: str) -> Worker:
        if source is not None:
            (tmp_path / "app.py").write_text(textwrap.dedent(source))
        workers.append(Worker(tmp_path, yard.nats_url, *options))
        return workers[-1]

    yield start
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill()


class Proxy:
    """A way to the coordinator that can be cut."""

    def __init__(self, url: str) -> None:
        name, port = url.removeprefix("http://").split(":")
        self.target = (name, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self.answers = threading.Event()
        self.answers.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                self.connections += [near, far]
                threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
                threading.Thread(target=self._copy, args=(far, near, self.answers), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket, may_pass: threading.Event | None = None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if may_pass is not None:
                    may_pass.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Keeps the answers of the coordinator back. Requests pass."""
        self.answers.clear()

    def release(self) -> None:
        """Lets the answers pass again."""
        self.answers.set()

    def cut(self) -> None:
        """Breaks every connection. New ones are accepted."""
        for end in self.connections:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.connections.clear()


@pytest.fixture
def proxy(yard: Yard) -> Iterator[Proxy]:
    way = Proxy(yard.url)
    yield way
    way.listener.close()
    way.release()
    way.cut()


def turn(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A message of a model in Anthropic's form, with these calls."""
    blocks = [
        {"type": "tool_use", "id": f"c{index}", "name": name, "input": arguments}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": blocks}


def texts(result: toolyard.TurnResult) -> list[str]:
    """The texts that the model gets for its calls."""
    blocks = [block for message in result.messages for block in message["content"]]
    return ["".join(part["text"] for part in block["content"]) for block in blocks]
