"""Pydantic AI: the tools of a fleet are a toolset of external tools; the calls of one response are one run.

::

    fleet = await Fleet.load(toolyard.AsyncClient(), pool="files")
    agent = Agent(model, toolsets=[fleet], capabilities=[fleet.capability], output_type=[str, DeferredToolRequests])

The capability executes the calls while the agent runs. Tools that need an approval are deferred as Pydantic AI has it:
the output is a ``DeferredToolRequests`` with ``approvals``, and the agent goes on with ``deferred_tool_results``. Such
a call is executed once it is approved, as a run of its own.

Without the capability all calls are in the output, and ``await fleet.execute(requests)`` returns their results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import ExternalToolset, RunContext
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ToolsetTool

from .. import AsyncClient
from ._calls import Answer, Definition, definitions_async, execute

if TYPE_CHECKING:
    from .._options import TurnOptions

__all__ = ["Fleet"]


class Fleet(ExternalToolset[Any]):
    """The tools of a fleet; ``options`` are those of a turn. :meth:`load` makes one."""

    def __init__(self, client: AsyncClient, tools: list[Definition], options: TurnOptions) -> None:
        described = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.schema)
            for tool in tools
        ]
        super().__init__(described, id="toolyard")
        self._client, self._options = client, options
        self._names = {tool.name for tool in tools}
        self._waits = {tool.name for tool in tools if tool.needs_approval}
        #: For an ``Agent``: executes the calls that need no approval while the agent runs.
        self.capability: HandleDeferredToolCalls[Any] = HandleDeferredToolCalls(self._handle)

    @classmethod
    async def load(cls, client: AsyncClient, options: TurnOptions | None = None, **filters: Any) -> Fleet:
        """Reads the tools of the fleet, with filters of :meth:`toolyard.AsyncClient.tools`."""
        return cls(client, await definitions_async(client, **filters), options or {})

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools, of which some need an approval."""
        tools = await super().get_tools(ctx)
        for name in self._waits:
            tools[name] = replace(tools[name], tool_def=replace(tools[name].tool_def, kind="unapproved"))
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Executes a call that was approved."""
        call_id = ctx.tool_call_id or "call"
        approved: TurnOptions = {**self._options, "approve": [call_id]}
        said = (await execute(self._client, [(call_id, name, tool_args)], approved))[call_id]
        if said.is_error:
            raise ToolFailed(said.text)
        return said.text

    async def execute(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """Has the calls of the fleet's tools executed that need no approval."""
        calls = [(it.tool_call_id, it.tool_name, it.args) for it in requests.calls if it.tool_name in self._names]
        said = await execute(self._client, calls, self._options) if calls else {}
        return DeferredToolResults(calls={call_id: _result(it) for call_id, it in said.items()})

    async def _handle(self, ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults | None:
        return await self.execute(requests)


def _result(answer: Answer) -> Any:
    return ToolFailed(answer.text) if answer.is_error else answer.text
