"""The processes that are driven: the coordinator that is always there, and others that a test may kill."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEBUG = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug"
URL = os.environ["TOOLYARD_URL"]
NATS_URL = os.environ["TOOLYARD_NATS_URL"]
MCP = f"{URL}/mcp"
TASKS = "io.modelcontextprotocol/tasks"
# A Node that is new enough, as `run` found it.
NODE = os.environ.get("TOOLYARD_NODE", "node")


def coordinator(test):
    """Another coordinator of the same broker, and its address."""
    command = [DEBUG / "toolyard", "coordinator", "--nats-url", NATS_URL, "--listen", "127.0.0.1:0", "-o", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    test.addCleanup(process.stderr.close)
    test.addCleanup(process.wait)
    test.addCleanup(process.terminate)
    for line in process.stderr:
        word = json.loads(line)
        if "address" in word:
            return process, f"http://{word['address']}/mcp"
    test.fail("the coordinator ended before it was up")
