"""The README's files and commands are run as a reader runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from conftest import Yard

README = (Path(__file__).parents[1] / "README.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL))


class Model(BaseHTTPRequestHandler):
    """Anthropic's API, by a script: it calls the tool once, and then repeats what it was given."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = asked["messages"][-1]["content"]
        if isinstance(last, str):
            assert [tool["name"] for tool in asked["tools"]] == ["find_lines"]
            block = {"type": "tool_use", "id": "t", "name": "find_lines", "input": {"pattern": last}}
        else:
            block = {"type": "text", "text": last[0]["content"][0]["text"]}
        reason = "tool_use" if block["type"] == "tool_use" else "end_turn"
        answer = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block]}
        usage = {"input_tokens": 1, "output_tokens": 1}
        body = json.dumps({**answer, "stop_reason": reason, "stop_sequence": None, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def environment(yard: Yard, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A folder with the README's files, a shell's variables, and the README's worker."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    programs = f"{Path(yard.program).parent}:{Path(sys.executable).parent}"
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TOOLYARD_URL": yard.url,
        "TOOLYARD_NATS_URL": yard.nats_url,
    }
    environment = {**os.environ, **variables}
    [command] = re.findall(r"<!-- worker -->\n```sh\n(.*?)```", README, re.DOTALL)
    worker = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert "serves pool files" in worker.stdout.readline()
    yield environment
    worker.terminate()
    assert worker.wait(60) == 0


def test_the_commands_print_what_the_readme_says(environment: dict[str, str], tmp_path: Path) -> None:
    [(command, output)] = re.findall(r"<!-- run -->\n```sh\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        ["bash", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert output in done.stdout, done.stderr


def test_the_tests_of_the_readme_pass(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_files.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


def test_the_agent_of_the_readme_answers(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("anthropic")
    (tmp_path / "notes.txt").write_text("hello yard\n")
    model = HTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    variables = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{model.server_port}", "ANTHROPIC_API_KEY": "none"}
    command = [sys.executable, "agent.py", "yard"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, **variables}, capture_output=True, text=True, check=False
    )
    model.shutdown()
    assert done.stdout == "notes.txt: hello yard\n\n", done.stderr
