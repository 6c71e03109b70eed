"""Google's Agent Development Kit: the tools of a fleet; the calls of one response are one run.

::

    fleet = await Fleet.load(toolyard.AsyncClient(), pool="files")
    agent = LlmAgent(name="desk", model=model, tools=[*fleet.tools], after_model_callback=fleet.after_model)

Tools that need an approval ask for ADK's tool confirmation, and are executed once it is confirmed, each call as a run
of its own; the other calls of the response do not wait for it. Without the callback every call is a run of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai.types import FunctionDeclaration

from .. import AsyncClient
from ._calls import Answer, Call, Definition, definitions_async, execute

if TYPE_CHECKING:
    from .._options import TurnOptions

__all__ = ["Fleet"]


class Fleet:
    """The tools of a fleet; ``options`` are those of a turn. :meth:`load` makes one."""

    def __init__(self, client: AsyncClient, tools: list[Definition], options: TurnOptions) -> None:
        self._client, self._options = client, options
        self._free = {tool.name for tool in tools if not tool.needs_approval}
        self._running: dict[tuple[str, str], asyncio.Task[dict[str, Answer]]] = {}
        #: For an ``LlmAgent``.
        self.tools: list[BaseTool] = [_Tool(self, tool) for tool in tools]

    @classmethod
    async def load(cls, client: AsyncClient, options: TurnOptions | None = None, **filters: Any) -> Fleet:
        """Reads the tools of the fleet, with filters of :meth:`toolyard.AsyncClient.tools`."""
        return cls(client, await definitions_async(client, **filters), options or {})

    async def after_model(self, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Has those calls of a response executed that need no approval."""
        parts = (llm_response.content and llm_response.content.parts) or []
        asked = [part.function_call for part in parts if part.function_call and not llm_response.partial]
        calls: list[Call] = [(it.id, it.name, it.args) for it in asked if it.id and it.name in self._free]
        if calls:
            running = asyncio.create_task(execute(self._client, calls, self._options))
            self._running |= {(callback_context.invocation_id, call_id): running for call_id, _, _ in calls}

    async def call(self, call: Call, invocation: str, is_confirmed: bool) -> Answer:
        """The answer of a call of the response, or of one that was confirmed."""
        running = self._running.pop((invocation, call[0]), None)
        if running is not None:
            return (await asyncio.shield(running))[call[0]]
        approved: TurnOptions = {"approve": [call[0]]} if is_confirmed else {}
        return (await execute(self._client, [call], {**self._options, **approved}))[call[0]]


class _Tool(BaseTool):
    def __init__(self, fleet: Fleet, tool: Definition) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._fleet, self._tool = fleet, tool

    def _get_declaration(self) -> FunctionDeclaration:
        tool = self._tool
        return FunctionDeclaration(name=tool.name, description=tool.description, parameters_json_schema=tool.schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Executes a call; one that needs an approval asks for it first."""
        confirmation = tool_context.tool_confirmation
        if self._tool.needs_approval and confirmation is None:
            tool_context.request_confirmation(hint=f"{self.name} needs an approval.")
            tool_context.actions.skip_summarization = True
            return {"error": "the call waits for an approval"}
        if self._tool.needs_approval and confirmation is not None and not confirmation.confirmed:
            return {"error": "the call was rejected"}
        call = (tool_context.function_call_id or "call", self.name, args)
        said = await self._fleet.call(call, tool_context.invocation_id, self._tool.needs_approval)
        return {"error" if said.is_error else "result": said.text}
