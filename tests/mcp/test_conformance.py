"""The conformance suite of the protocol, in both generations. What it expects of servers that are more than servers of
tools is listed in `expected-*.yml`, with reasons."""

import functools
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import httpx2
import yard

HERE = pathlib.Path(__file__).resolve().parent
NPM = os.environ.get("TOOLYARD_NPM")


def wait_until(is_so, what):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError(what)


def is_listed(tool):
    return httpx2.get(f"{yard.URL}/v1/tools/{tool}", timeout=60).status_code == 200


def is_available(tool):
    answer = httpx2.get(f"{yard.URL}/v1/tools/{tool}", timeout=60)
    return answer.status_code == 200 and answer.json()["tool"].get("available", False)


# Once: the suites leave the tool that comes and goes there or not.
@functools.cache
def wait_for_tools():
    """The tools of the worker are known when its last one is. A coordinator that has just started takes every tool for
    available until it knows the workers, so a change shows only when a tool that was removed is not there any more."""
    wait_until(lambda: is_listed("test_tool_with_progress"), "the worker's tools do not become known")
    for is_there in (True, False):
        change = {"name": "test_trigger_tool_change", "arguments": {}}
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": change["name"],
        }
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**change, "_meta": meta}}
        httpx2.post(yard.MCP, json=call, headers=headers, timeout=60).raise_for_status()
        wait_until(lambda: is_available("test_dynamic_tool") == is_there, "a change of the tools does not become known")


@unittest.skipUnless(NPM, "there is no npm here")
class Conformance(unittest.TestCase):
    def setUp(self):
        wait_for_tools()

    def run_suite(self, revision):
        suite = pathlib.Path(NPM, "node_modules/@modelcontextprotocol/conformance/dist/index.js")
        expected = HERE / f"expected-{revision}.yml"
        command = [yard.NODE, suite, "server", "--url", yard.MCP, "--requirements", revision]
        with tempfile.TemporaryDirectory() as results:
            ran = subprocess.run(
                [*command, "--expected-failures", expected], cwd=results, capture_output=True, text=True
            )
        summary = ran.stdout[ran.stdout.find("=== SUMMARY") :]
        print(f"\n{revision}\n{summary}")
        self.assertEqual(ran.returncode, 0, summary + ran.stderr)

    def test_the_present_revision(self):
        self.run_suite("2026-07-28")

    def test_the_revision_with_sessions(self):
        self.run_suite("2025-11-25")


@unittest.skipUnless(NPM, "there is no npm here")
class TypeScript(unittest.TestCase):
    def test_the_official_sdk(self):
        wait_for_tools()
        environment = {**os.environ, "TOOLYARD_PROGRAM": str(yard.DEBUG / "toolyard")}
        suite = subprocess.run(
            [yard.NODE, "--test", "--test-timeout", "120000", "client.test.mjs", "killed.test.mjs"],
            cwd=NPM,
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(suite.returncode, 0, suite.stdout + suite.stderr)
