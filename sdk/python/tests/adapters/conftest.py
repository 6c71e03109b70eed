"""A fleet with the tools of a travel desk, and a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Worker, Yard

import toolyard

DESK = Path(__file__).parents[2] / "examples" / "desk"


class Model:
    """`toolyard model` with the script of the examples."""

    def __init__(self, program: str, script: Path) -> None:
        command = [program, "model", "--script", str(script), "--listen", "127.0.0.1:0", "-o", "json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.openai: str = said["openai"]
        self.anthropic: str = said["anthropic"]


@pytest.fixture(scope="session")
def model(yard: Yard) -> Iterator[Model]:
    running = Model(yard.program, DESK / "script.toml")
    yield running
    running.process.terminate()
    running.process.wait()


@pytest.fixture(scope="session")
def desk(yard: Yard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[toolyard.Client]:
    """A client of a fleet that hosts the desk."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "app.py").write_text((DESK / "desk.py").read_text())
    worker = Worker(folder, yard.nats_url)
    yield toolyard.Client(yard.url)
    worker.kill()


Example = Callable[..., str]


@pytest.fixture
def example(yard: Yard, desk: toolyard.Client, model: Model) -> Example:
    """Runs an example as a reader runs it, and returns what it prints."""

    def run(name: str, *arguments: str) -> str:
        variables = {
            "TOOLYARD_URL": yard.url,
            "OPENAI_BASE_URL": model.openai.removesuffix("/chat/completions"),
            "ANTHROPIC_BASE_URL": model.anthropic.removesuffix("/v1/messages"),
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        command = [sys.executable, str(DESK.parent / name), *arguments]
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
