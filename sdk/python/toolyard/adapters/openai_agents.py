"""OpenAI's Agents SDK: the tools of a fleet as function tools; the calls of one response are one run.

::

    fleet = await Fleet.load(toolyard.AsyncClient(), pool="files")
    agent = Agent(name="desk", tools=fleet.tools)
    result = await Runner.run(agent, "...", hooks=fleet.hooks)

For tools that need an approval the SDK asks: the result has ``interruptions``, and the agent goes on after
``state.approve(...)`` or ``state.reject(...)``. Such a call is executed once it is approved, as a run of its own; the
other calls of the response do not wait for it. Without the hooks every call is a run of its own.

Exclusive calls run one after another within their run only. So a call that was approved may overlap with exclusive
calls of the same response, and without the hooks all of them may.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agents import Agent, FunctionTool, ModelResponse, RunContextWrapper, RunHooks, Tool
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from .. import AsyncClient
from ._calls import Answer, Call, Definition, definitions_async, execute

if TYPE_CHECKING:
    from .._options import TurnOptions

__all__ = ["Fleet"]


class Fleet:
    """The tools of a fleet; ``options`` are those of a turn. :meth:`load` makes one."""

    def __init__(self, client: AsyncClient, tools: list[Definition], options: TurnOptions) -> None:
        self._client, self._options = client, options
        self._waits = {tool.name for tool in tools if tool.needs_approval}
        self._names = {tool.name for tool in tools}
        self._running: dict[str, asyncio.Task[dict[str, Answer]]] = {}
        #: For an ``Agent``.
        self.tools: list[Tool] = [self._tool(tool) for tool in tools]
        #: For ``Runner.run``.
        self.hooks: RunHooks[Any] = _Hooks(self)

    @classmethod
    async def load(cls, client: AsyncClient, options: TurnOptions | None = None, **filters: Any) -> Fleet:
        """Reads the tools of the fleet, with filters of :meth:`toolyard.AsyncClient.tools`."""
        return cls(client, await definitions_async(client, **filters), options or {})

    def _tool(self, tool: Definition) -> FunctionTool:
        async def invoke(context: ToolContext[Any], arguments: str) -> str:
            return await self._call((context.tool_call_id, tool.name, arguments))

        return FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.schema,
            on_invoke_tool=invoke,
            strict_json_schema=False,
            needs_approval=tool.needs_approval,
        )

    def begin(self, response: ModelResponse) -> None:
        """Has those calls of a response executed that need no approval."""
        items = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
        calls: list[Call] = [
            (item.call_id, item.name, item.arguments) for item in items if item.name in self._names - self._waits
        ]
        if calls:
            running = asyncio.create_task(execute(self._client, calls, self._options))
            self._running |= {call_id: running for call_id, _, _ in calls}

    async def _call(self, call: Call) -> str:
        call_id, name, _ = call
        running = self._running.pop(call_id, None)
        if running is None:
            # The SDK has asked before it invokes a tool that needs an approval.
            approved: TurnOptions = {"approve": [call_id]} if name in self._waits else {}
            said = await execute(self._client, [call], {**self._options, **approved})
        else:
            said = await asyncio.shield(running)
        return said[call_id].text


class _Hooks(RunHooks[Any]):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        self._fleet.begin(response)
