"""The tutorial, from an empty folder to an answer, as a reader follows it who has a wheel and no Rust toolchain."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Yard

TUTORIAL = (Path(__file__).parents[3] / "docs/tutorial/python.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", TUTORIAL, re.DOTALL))
SESSIONS = dict(re.findall(r"<!-- session: (\S+) -->\n```console\n(.*?)```", TUTORIAL, re.DOTALL))
LIMIT_S = 120


def commands(session: str) -> Iterator[tuple[str, str]]:
    """The commands of a session, with what they print; "…" stands for what varies."""
    for command in session.removeprefix("$ ").split("\n$ "):
        line, _, printed = command.partition("\n")
        yield line, printed


def fits(recorded: str, printed: str) -> bool:
    """Whether the recording says what was printed."""
    pattern = ".*".join(re.escape(part) for part in recorded.strip().split("…"))
    return re.match(pattern, printed.strip(), re.DOTALL) is not None


@pytest.fixture
def environment(yard: Yard, tmp_path: Path) -> dict[str, str]:
    """The variables of a reader's shell."""
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder]
    without_rust = [
        folder for folder in folders if not any((Path(folder) / name).exists() for name in ("cargo", "rustc"))
    ]
    # Neither the environment of these tests, whose `python3` has the package.
    without_rust = [folder for folder in without_rust if Path(folder) != Path(sys.executable).parent]
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "toolyard").symlink_to(Path(yard.program).resolve())
    path = os.pathsep.join([str(programs), *without_rust])
    assert [shutil.which(name, path=path) for name in ("cargo", "rustc")] == [None, None]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "RUST", "PYTHON"))}
    addresses = {"TOOLYARD_URL": yard.url, "TOOLYARD_NATS_URL": yard.nats_url}
    return {**kept, **addresses, "PATH": path, "WHEEL": os.environ["TOOLYARD_WHEEL"]}


def test_an_empty_folder_becomes_a_tool_that_answers(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    began = time.monotonic()

    def follow(session: str) -> None:
        for command, recorded in commands(SESSIONS[session]):
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert fits(recorded, done.stdout + done.stderr), f"{command}\n{done.stdout}{done.stderr}"

    follow("setup")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    [(command, recorded)] = commands(SESSIONS["worker"])
    worker = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert fits(recorded, worker.stdout.readline())
    follow("call")
    took = time.monotonic() - began
    print(f"from an empty folder to an answer: {took:.1f} s")
    worker.terminate()
    assert worker.wait(60) == 0
    assert took < LIMIT_S
