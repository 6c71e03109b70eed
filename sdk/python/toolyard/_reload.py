"""Starts a worker again after each change of a Python file, for development."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: How often files are looked at, in seconds.
_PAUSE_S = 0.3
#: How long a call may take to end before its worker is started again, in seconds.
_DRAIN_S = 2
_SKIPPED = {"node_modules", "target", "__pycache__", "site-packages"}


def supervise(arguments: Sequence[str]) -> None:
    """Runs the worker as a process of its own until SIGTERM or SIGINT."""
    stopped = False

    def stop(number: int, frame: Any) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    command = [sys.executable, "-m", "toolyard.cli", *arguments, "--drain", str(_DRAIN_S)]
    while not stopped:
        before = _times(Path.cwd())
        worker = subprocess.Popen(command, start_new_session=True)
        while not stopped and _times(Path.cwd()) == before:
            time.sleep(_PAUSE_S)
        if not stopped:
            print("a file has changed: starting again", file=sys.stderr)
        if worker.poll() is None:
            worker.terminate()
        worker.wait()


def _times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in _files(folder) if path.exists()}


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        # An environment of Python has a file of this name.
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED and not name.startswith(".") and not (Path(parent) / name / "pyvenv.cfg").exists()
        ]
        yield from (Path(parent) / name for name in files if name.endswith(".py"))
