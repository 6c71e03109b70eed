"""The official SDK for Python, in both generations of the protocol."""

import asyncio
import unittest
from typing import Any, Literal

import httpx2
import mcp_types as types
import yard
from mcp import Client
from mcp.client.extension import ClientExtension, ResultClaim

TERMINAL = ("completed", "failed", "cancelled")


class Task(types.Result):
    """The result that makes a call a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class TasksExtension(ClientExtension):
    """The SDK knows the extension's frame, and leaves its content to those who need it."""

    identifier = yard.TASKS

    def __init__(self, resolve):
        self.resolve = resolve

    def settings(self):
        return {}

    def claims(self):
        return [ResultClaim(result_type="task", model=Task, resolve=self.resolve)]


def request(url, method, name, **params):
    """A request of the present revision, as any client sends it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "extensions": {yard.TASKS: {}}},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
        "mcp-name": name,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return httpx2.post(url, headers=headers, json=body, timeout=60).json()


async def end_of(url, task_id):
    """The state of a task when it has ended."""
    while True:
        answer = await asyncio.to_thread(request, url, "tasks/get", task_id, taskId=task_id)
        if answer["result"]["status"] in TERMINAL:
            return answer["result"]
        await asyncio.sleep(0.2)


def text(result):
    return "".join(part.text for part in result.content if part.type == "text")


async def accept(_context, params) -> types.ElicitResult:
    names = params.requested_schema["properties"]
    return types.ElicitResult(action="accept", content={name: f"my {name}" for name in names})


class Python(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        # In debug mode the loop reports every step that takes long, which on a shared machine means nothing.
        asyncio.get_running_loop().set_debug(False)

    async def each_generation(self, body, **options):
        for mode in ("auto", "legacy"):
            with self.subTest(mode):
                async with Client(yard.MCP, mode=mode, **options) as client:
                    await body(client)

    async def test_tools_are_listed_and_called(self):
        async def body(client):
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            self.assertTrue(tools["greet"].annotations.read_only_hint)
            result = await client.call_tool("greet", {"name": "Ada"})
            self.assertEqual((text(result), result.is_error), ("Hello, Ada!", False))
            failed = await client.call_tool("greet", {})
            self.assertTrue(failed.is_error, "arguments that do not fit are a result, which a model can read")

        await self.each_generation(body)

    async def test_progress_arrives_while_the_call_runs(self):
        async def body(client):
            heard = []

            async def progress(done, total, _message):
                heard.append((done, total))

            await client.call_tool("test_tool_with_progress", progress_callback=progress)
            self.assertEqual(heard, [(0, 100), (50, 100), (100, 100)])

        await self.each_generation(body)

    async def test_a_call_that_only_the_client_can_answer_is_an_elicitation(self):
        async def body(client):
            result = await client.call_tool("test_elicitation", {"message": "Who are you?"})
            self.assertIn("my username", text(result))

        await self.each_generation(body, elicitation_callback=accept)

    async def test_a_call_whose_client_gives_up_is_cancelled(self):
        async def body(client):
            label = f"given up by {client.protocol_version}"
            with self.assertRaises(Exception):
                arguments = {"seconds": 50, "label": label}
                await client.call_tool("slow_compute", arguments, read_timeout_seconds=2)
            await self.until_cancelled(label)

        await self.each_generation(body)

    async def until_cancelled(self, label):
        query = {"tool": "slow_compute", "page_size": 100}
        for _ in range(300):
            calls = httpx2.get(f"{yard.URL}/v1/calls", params=query, timeout=60).json().get("calls", [])
            for call in calls:
                run = httpx2.get(f"{yard.URL}/v1/runs/{call['run_id']}", timeout=60).json()["run"]
                [found] = run["calls"][:1]
                if label in found["arguments"] and found["state"] == "CALL_STATE_CANCELLED":
                    return
            await asyncio.sleep(0.1)
        self.fail(f"the call {label!r} goes on")

    async def test_a_task_outlives_the_coordinator_that_made_it(self):
        process, doomed = yard.coordinator(self)
        seen: dict[str, Any] = {}

        async def resolve(task, _context):
            seen["task"] = task
            process.kill()
            process.wait()
            ended = await end_of(yard.MCP, task.task_id)
            return types.CallToolResult.model_validate(ended["result"])

        async with Client(doomed, extensions=[TasksExtension(resolve)]) as client:
            # The SDK checks results against the listed schemas, and cannot list when the coordinator is gone.
            await client.list_tools()
            result = await client.call_tool("slow_compute", {"seconds": 3})
        self.assertEqual(text(result), "computed for 3 s")
        self.assertTrue(seen["task"].task_id.startswith("task_"))

    async def test_a_list_that_changes_is_reported(self):
        changed = asyncio.Event()

        async def heard(message):
            if "list_changed" in str(getattr(message, "method", "")):
                changed.set()

        async with Client(yard.MCP, mode="legacy", message_handler=heard) as client:
            await client.list_tools()
            await client.call_tool("test_trigger_tool_change")
            await asyncio.wait_for(changed.wait(), 30)
