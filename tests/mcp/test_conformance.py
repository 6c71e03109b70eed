"""The conformance suite of the protocol, in both generations. What it expects of servers that are more than servers of
tools is listed in `expected-*.yml`, with reasons."""

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


def wait_for_tools():
    """The tools of the worker are known when its last one is."""
    for _ in range(600):
        if httpx2.get(f"{yard.URL}/v1/tools/test_tool_with_progress", timeout=60).status_code == 200:
            return
        time.sleep(0.1)
    raise AssertionError("the worker's tools do not become known")


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
