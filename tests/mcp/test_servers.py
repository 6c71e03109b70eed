"""Servers of others, hosted by `toolyard worker --mcp-config`, through every endpoint and the command line, which is a
client of the gRPC API."""

import asyncio
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import httpx2
import mcp_types as types
import yard
from mcp import Client

NPM = os.environ.get("TOOLYARD_NPM")
PROGRAM = yard.DEBUG / "toolyard"
ASKS = "everything__trigger-elicitation-request"
# No call of these awaits approval.
UNASKED = [{"type": "mcp", "server_label": "toolyard", "require_approval": "never"}]


def post(path, body, **headers):
    return httpx2.post(f"{yard.URL}{path}", json=body, headers=headers, timeout=60)


def get(path):
    return httpx2.get(f"{yard.URL}{path}", timeout=60)


def batch(tool, arguments, key):
    call = {"type": "tool_use", "id": "c", "name": tool, "input": arguments}
    turn = {"role": "assistant", "content": [call]}
    return post("/v1/tool_calls:batch?wait=60s&confirmation=none", turn, **{"idempotency-key": key}).json()


def responses(tool, arguments):
    item = {"type": "function_call", "call_id": "c", "name": tool, "arguments": json.dumps(arguments)}
    return post("/v1/responses", {"input": [item], "tools": UNASKED})


def assistants(tool, arguments, stream):
    function = {"name": tool, "arguments": json.dumps(arguments)}
    calls = [{"id": "c", "type": "function", "function": function}]
    return post("/v1/threads/thread_1/runs", {"tool_calls": calls, "tools": UNASKED, "stream": stream})


def program(*arguments):
    command = [PROGRAM, *arguments, "--url", yard.URL]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def through_mcp(mode, tool, arguments, answer=None):
    """The SDK answers elicitations by itself."""

    async def accept(_context, _params):
        return types.ElicitResult(action="accept", content=answer)

    async def call():
        options = {"elicitation_callback": accept} if answer else {}
        async with Client(yard.MCP, mode=mode, **options) as client:
            await client.list_tools()
            return str(await client.call_tool(tool, arguments))

    return asyncio.run(call())


CALLED = {
    "cli": lambda tool, arguments: program("call", tool, "--json", json.dumps(arguments)),
    "batch": lambda tool, arguments: json.dumps(batch(tool, arguments, tool)["messages"]),
    "responses": lambda tool, arguments: responses(tool, arguments).text,
    "assistants": lambda tool, arguments: assistants(tool, arguments, True).text,
    "mcp": lambda tool, arguments: through_mcp("auto", tool, arguments),
    "mcp, older": lambda tool, arguments: through_mcp("legacy", tool, arguments),
}


def waiting(run):
    """The open question of a run that requires action."""
    while True:
        state = get(f"/v1/runs/{run}").json()["run"]
        for call in state["calls"]:
            if call["state"] == "CALL_STATE_WAITING_FOR_CLIENT":
                return call
        assert state["status"] == "RUN_STATUS_IN_PROGRESS", state


def answered_by_cli(content):
    command = [PROGRAM, "call", ASKS, "-o", "json", "--url", yard.URL]
    calling = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    run = None
    with calling.stdout as lines:
        for line in lines:
            event = json.loads(line)
            run = event.get("run_opened", {}).get("run_id", run)
            if "call_waiting" in event:
                program("submit", run, event["call_waiting"]["call_id"], json.dumps(content))
            if event.get("call_ended", {}).get("call_id") == "call_0":
                calling.wait()
                return json.dumps(event, ensure_ascii=False)
    return None


def answered_by_batch(content):
    opened = batch(ASKS, {}, "asks")
    [question] = [call for call in opened["open_calls"] if call.get("asked_by_call_id") == "c"]
    output = {"call_id": question["call_id"], "result": [{"text": json.dumps(content)}]}
    post(f"/v1/runs/{opened['run_id']}/outputs", {"outputs": [output]}).raise_for_status()
    return json.dumps(batch(ASKS, {}, "asks")["messages"])


def answered_by_responses(content):
    first = responses(ASKS, {}).json()
    [question] = [item for item in first["output"] if item.get("name") == "elicitation"]
    output = {"type": "function_call_output", "call_id": question["call_id"], "output": json.dumps(content)}
    return post("/v1/responses", {"previous_response_id": first["id"], "input": [output]}).text


def answered_by_assistants(content):
    run = assistants(ASKS, {}, False).json()["id"]
    waiting(run)
    there = f"/v1/threads/thread_1/runs/{run}"
    [call] = get(there).json()["required_action"]["submit_tool_outputs"]["tool_calls"]
    outputs = [{"tool_call_id": call["id"], "output": json.dumps(content)}]
    return post(f"{there}/submit_tool_outputs", {"tool_outputs": outputs, "stream": True}).text


ANSWERED = {
    "cli": answered_by_cli,
    "batch": answered_by_batch,
    "responses": answered_by_responses,
    "assistants": answered_by_assistants,
    "mcp": lambda content: through_mcp("auto", ASKS, {}, content),
    "mcp, older": lambda content: through_mcp("legacy", ASKS, {}, content),
}


@unittest.skipUnless(NPM, "there is no npm here")
class Servers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name).resolve()
        cls.repository = cls.folder / "repository"
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
        subprocess.run(["git", "init", "-q", cls.repository], check=True)
        commit = ["commit", "-q", "--allow-empty", "-m", "the first commit"]
        subprocess.run([*git, "-C", cls.repository, *commit], check=True)
        (cls.folder / "a.txt").write_text("written before")
        npm, python = pathlib.Path(NPM, "node_modules/.bin"), pathlib.Path(os.environ["TOOLYARD_SERVERS"])
        servers = {
            "everything": {"command": f"{npm}/mcp-server-everything", "args": ["stdio"]},
            "files": {"command": f"{npm}/mcp-server-filesystem", "args": [str(cls.folder)]},
            "git": {"command": f"{python}/mcp-server-git", "args": ["--repository", str(cls.repository)]},
            "time": {"command": f"{python}/mcp-server-time", "args": ["--local-timezone", "Europe/Berlin"]},
        }
        config = cls.folder / "servers.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        command = [PROGRAM, "worker", "--nats-url", yard.NATS_URL, "--pool", "servers", "--mcp-config", config]
        # The interpreter and the folder may be readable by this user alone.
        options = ["--sandbox", "none", "--tools-user", f"{os.getuid()}:{os.getgid()}"]
        log = (cls.folder / "worker.log").open("w")
        cls.addClassCleanup(log.close)
        cls.worker = subprocess.Popen([*command, *options], stderr=log)
        cls.addClassCleanup(cls.worker.wait)
        cls.addClassCleanup(cls.worker.terminate)
        for tool in "everything__echo", "files__read_text_file", "git__git_log", "time__get_current_time":
            cls.until_hosted(tool)

    @classmethod
    def until_hosted(cls, tool):
        give_up = time.monotonic() + 90
        while get(f"/v1/tools/{tool}").status_code != 200:
            if cls.worker.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"{tool} is not hosted: {(cls.folder / 'worker.log').read_text()}")
            time.sleep(0.1)

    def test_a_tool_of_each_server_is_called_through_each_endpoint(self):
        rows = [
            ("everything__echo", {"message": "through and through"}, "through and through"),
            ("files__read_text_file", {"path": str(self.folder / "a.txt")}, "written before"),
            ("git__git_log", {"repo_path": str(self.repository)}, "the first commit"),
            ("time__get_current_time", {"timezone": "Asia/Shanghai"}, "Asia/Shanghai"),
        ]
        for tool, arguments, expected in rows:
            for endpoint, called in CALLED.items():
                with self.subTest(tool=tool, endpoint=endpoint):
                    self.assertIn(expected, called(tool, arguments))

    def test_a_server_asks_through_each_endpoint(self):
        self.until_hosted(ASKS)
        for endpoint, answered in ANSWERED.items():
            with self.subTest(endpoint=endpoint):
                self.assertIn(f"Ada of {endpoint}", answered({"name": f"Ada of {endpoint}"}))
