"""LlamaIndex: the tools of a fleet for agents of its workflows; the calls of one message are one run.

::

    fleet = await Fleet.load(toolyard.AsyncClient(), pool="files")
    agent = FleetAgent(fleet=fleet, llm=llm)

A :class:`FleetAgent` is a ``FunctionAgent`` that has the tools of a fleet beside its own. A tool that needs an approval
writes an :class:`ApprovalRequired` to the stream of the workflow's events, and waits for the ``Approval`` that answers
it: ``handler.ctx.send_event(event.approve())`` or ``event.reject("...")``. Such a call is executed once it is approved,
as a run of its own; the other calls of the message do not wait for it.
"""

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.agent.workflow import AgentOutput, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemory
from llama_index.core.tools import AsyncBaseTool, FunctionTool, ToolMetadata
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

from .. import AsyncClient, ToolError
from ._calls import Answer, Call, Definition, definitions_async, execute

if TYPE_CHECKING:
    from .._options import TurnOptions

__all__ = ["Approval", "ApprovalRequired", "Fleet", "FleetAgent"]


class Approval(HumanResponseEvent):
    """What somebody decided on a call; ``ApprovalRequired`` makes it."""

    call: str
    #: Why the call is rejected; ``None`` approves it.
    reason: str | None


class ApprovalRequired(InputRequiredEvent):
    """A call is not executed before it is approved."""

    tool: str
    arguments: dict[str, Any]
    call: str

    def approve(self) -> Approval:
        """To be sent to the workflow."""
        return Approval(call=self.call, reason=None)

    def reject(self, reason: str = "it was rejected") -> Approval:
        """To be sent to the workflow; the model reads the reason."""
        return Approval(call=self.call, reason=reason)


class Fleet:
    """The tools of a fleet; ``options`` are those of a turn. :meth:`load` makes one."""

    def __init__(self, client: AsyncClient, tools: list[Definition], options: "TurnOptions") -> None:
        self._client, self._options = client, options
        self._waits = {tool.name for tool in tools if tool.needs_approval}
        self._names = {tool.name for tool in tools}
        self._running: dict[str, tuple[list[Call], asyncio.Task[dict[str, Answer]]]] = {}
        #: For agents that are no ``FleetAgent``: with these alone each call is a run of its own.
        self.tools: list[Any] = [self._tool(tool) for tool in tools]

    @classmethod
    async def load(cls, client: AsyncClient, options: "TurnOptions | None" = None, **filters: Any) -> "Fleet":
        """Reads the tools of the fleet, with filters of :meth:`toolyard.AsyncClient.tools`."""
        return cls(client, await definitions_async(client, **filters), options or {})

    def _tool(self, tool: Definition) -> AsyncBaseTool:
        async def call(workflow_context: Context, **arguments: Any) -> str:
            said = await self._call(workflow_context, tool, arguments)
            if said.is_error:
                raise ToolError(said.text)
            return said.text

        return FunctionTool(async_fn=call, metadata=_Metadata(tool))

    async def begin(self, context: Any, output: AgentOutput) -> None:
        """Has those calls of a message executed that need no approval."""
        self._running.pop(await context.store.get("toolyard", default=""), None)
        step = str(uuid.uuid4())
        await context.store.set("toolyard", step)
        named = [it for it in output.tool_calls if it.tool_name in self._names - self._waits]
        calls: list[Call] = [(it.tool_id, it.tool_name, it.tool_kwargs) for it in named]
        if calls:
            self._running[step] = (calls, asyncio.create_task(execute(self._client, calls, self._options)))

    async def _call(self, context: Any, tool: Definition, arguments: dict[str, Any]) -> Answer:
        approved: TurnOptions = {}
        step = await context.store.get("toolyard", default="")
        if tool.name in self._waits:
            # Without the step an approval would count for the same call of a later message too.
            call = f"{step} {tool.name} {json.dumps(arguments, sort_keys=True)}"
            event = ApprovalRequired(tool=tool.name, arguments=arguments, call=call)
            decided = await context.wait_for_event(Approval, event, call, {"call": call}, None)
            if decided.reason is not None:
                return Answer(f"Error: {decided.reason}", True)
            approved = {"approve": ["call"]}
        calls, running = self._running.get(step, ([], None))
        # LlamaIndex does not tell a tool the id of its call; equal calls have equal rights to each answer.
        mine = next((it for it in calls if it[1:] == (tool.name, arguments)), None)
        if running is None or mine is None:
            return (await execute(self._client, [("call", tool.name, arguments)], {**self._options, **approved}))[
                "call"
            ]
        calls.remove(mine)
        return (await asyncio.shield(running))[mine[0]]


class FleetAgent(FunctionAgent):
    """A ``FunctionAgent`` with the tools of a fleet; the calls of one message are one run."""

    fleet: Any

    def __init__(self, *, fleet: Fleet, tools: Sequence[Any] = (), **fields: Any) -> None:
        super().__init__(fleet=fleet, tools=[*tools, *fleet.tools], **fields)

    async def take_step(
        self, ctx: Any, llm_input: list[ChatMessage], tools: Sequence[AsyncBaseTool], memory: BaseMemory
    ) -> AgentOutput:
        """Asks the model, and begins the run of its calls."""
        output = await super().take_step(ctx, llm_input, tools, memory)
        await self.fleet.begin(ctx, output)
        return output


class _Metadata(ToolMetadata):
    def __init__(self, tool: Definition) -> None:
        super().__init__(description=tool.description, name=tool.name, fn_schema=None)
        self._schema = tool.schema

    def get_parameters_dict(self) -> dict[str, Any]:
        return self._schema
