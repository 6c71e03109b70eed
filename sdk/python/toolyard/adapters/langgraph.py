"""LangGraph and LangChain: the tool calls of a message are one run of the fleet, and its approvals are interrupts.

In a graph of your own a node takes the place of ``ToolNode``::

    fleet = Fleet(toolyard.Client(), pool="files")
    model = ChatOpenAI(...).bind_tools(fleet.tools)
    graph.add_node("tools", fleet.node)

In ``langchain.agents.create_agent`` it is a middleware, and tools in Python may be beside it::

    create_agent(model, tools=[...], middleware=[fleet.middleware])

If calls wait for an approval, or ask a question, the graph is interrupted with the request of LangChain's
``HumanInTheLoopMiddleware``, and it is resumed in the same way::

    graph.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)

A decision is ``approve``, ``edit`` with an ``edited_action``, or ``reject`` with a ``message``; a question is answered
by ``respond`` with a ``message``, or refused by ``reject``. A resumed graph finds its run again, in another process
too, so no call is executed twice. This needs a checkpointer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.types import interrupt

from .. import CallEnded, Client, Event, NeedsAnswer, NeedsApproval, Other, RequestError
from ._calls import Call, Definition, answers, definitions, message

if TYPE_CHECKING:
    from .._options import TurnOptions

__all__ = ["Fleet"]

Open = NeedsApproval | NeedsAnswer


class Fleet:
    """The tools of a fleet, with filters of :meth:`toolyard.Client.tools`; ``options`` are those of a turn."""

    def __init__(self, client: Client, options: TurnOptions | None = None, **filters: Any) -> None:
        self._client = client
        self._options: TurnOptions = {**(options or {}), "form": "openai-chat", "floor": "arrival"}
        if self._options.get("on_disconnect") == "cancel":
            raise ValueError("an interrupt gives up waiting, so on_disconnect='cancel' would cancel calls that wait")
        #: For ``bind_tools``. They describe; the node or the middleware executes.
        self.tools: list[BaseTool] = [_described(tool) for tool in definitions(client, **filters)]
        #: In place of ``ToolNode``.
        self.node = RunnableLambda(self._node, name="toolyard")
        #: For ``create_agent``.
        self.middleware: AgentMiddleware[Any, Any] = _Middleware(self)

    def _node(self, state: Any, config: RunnableConfig) -> Any:
        if isinstance(state, list):
            return self.execute(state[-1], config)
        found = state if isinstance(state, dict) else vars(state)
        return {"messages": self.execute(found["messages"][-1], config)}

    def execute(
        self, asked: AIMessage, config: RunnableConfig, only: Callable[[str], bool] = lambda name: True
    ) -> list[ToolMessage]:
        """Has the calls of a message executed."""
        calls: list[Call] = [(str(it["id"]), it["name"], it["args"]) for it in asked.tool_calls if only(it["name"])]
        calls += [(str(it["id"]), str(it["name"]), it["args"] or "") for it in asked.invalid_tool_calls]
        if not calls:
            return []
        options: TurnOptions = {**self._options, "key": _key(asked, calls, config)}
        turn = self._client.turn(message(calls), **options)
        waiting: dict[str, Open] = {}
        for event in turn:
            if _is_round(event, waiting):
                self._decide(list(waiting.values()))
                waiting.clear()
        result = turn.result()
        said, names = answers(result), {call_id: name for call_id, name, _ in calls}
        return [
            ToolMessage(
                it.text, name=names[call_id], tool_call_id=call_id, status="error" if it.is_error else "success"
            )
            for call_id, it in said.items()
        ]

    def _decide(self, waiting: Sequence[Open]) -> None:
        """Interrupts the graph; when it is resumed this returns, and so it does whenever the node is executed again."""
        decisions = interrupt(_request(waiting))["decisions"]
        if len(decisions) != len(waiting):
            raise ValueError(f"{len(waiting)} calls wait, and there are {len(decisions)} decisions")
        for event, decision in zip(waiting, decisions, strict=True):
            try:
                _act(event, decision)
            except RequestError as error:
                # The node is executed again, or somebody else was first: the decision that is stored is kept.
                if error.reason not in DECIDED:
                    raise


DECIDED = ("CALL_ALREADY_DECIDED", "CALL_NOT_AWAITING_APPROVAL", "CALL_NOT_WAITING", "RUN_ENDED")


class _Middleware(AgentMiddleware[Any, Any]):
    """Answers the calls of the fleet's tools; the agent executes the others."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet, self.tools = fleet, fleet.tools

    @property
    def name(self) -> str:
        return "toolyard"

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Executes the calls of the last message."""
        last = state["messages"][-1]
        if not isinstance(last, AIMessage):
            return None
        said = self._fleet.execute(last, get_config(), {tool.name for tool in self.tools}.__contains__)
        return {"messages": said} if said else None


def _described(tool: Definition) -> BaseTool:
    def execute(**_: Any) -> str:
        raise RuntimeError(f"{tool.name} is executed by the fleet: add its node or its middleware")

    return StructuredTool(name=tool.name, description=tool.description, args_schema=tool.schema, func=execute)


def _key(asked: AIMessage, calls: Sequence[Call], config: RunnableConfig) -> str:
    """The run of a message, found again when its thread is resumed."""
    thread = (config.get("configurable") or {}).get("thread_id")
    if thread is None or asked.id is None:
        return str(uuid.uuid4())
    ids = " ".join(call_id for call_id, _, _ in calls)
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"langgraph {thread} {asked.id} {ids}"))


def _is_round(event: Event, waiting: dict[str, Open]) -> bool:
    """Whether nothing goes on before somebody acts.

    It depends on the log of the run alone, so a node that is executed again comes to the same interrupts in the same
    order, and each gets its own decision.
    """
    if isinstance(event, (NeedsApproval, NeedsAnswer)):
        waiting[event.call_id] = event
    elif isinstance(event, CallEnded):
        waiting.pop(event.call_id, None)
    elif isinstance(event, Other) and event.name in ("call_approved", "call_rejected"):
        waiting.pop(event.fields["call_id"], None)
    elif isinstance(event, Other) and event.name == "run_status_changed":
        return bool(waiting) and event.fields["status"] == "RUN_STATUS_REQUIRES_ACTION"
    return False


def _request(waiting: Sequence[Open]) -> dict[str, Any]:
    """The interrupt's value: LangChain's ``HITLRequest``."""
    actions, reviews = [], []
    for event in waiting:
        is_question = isinstance(event, NeedsAnswer)
        about = event.question if isinstance(event, NeedsAnswer) else "The tool needs an approval."
        actions.append({"name": event.tool, "args": event.arguments, "description": about})
        allowed = ["respond", "reject"] if is_question else ["approve", "edit", "reject"]
        reviews.append({"action_name": event.tool, "allowed_decisions": allowed})
    return {"action_requests": actions, "review_configs": reviews}


def _act(event: Open, decision: dict[str, Any]) -> None:
    match event, decision["type"]:
        case NeedsApproval(), "approve":
            event.approve()
        case NeedsApproval(), "edit":
            event.approve(decision["edited_action"]["args"])
        case NeedsApproval(), "reject":
            event.reject(decision.get("message", ""))
        case NeedsAnswer(), "respond":
            event.answer(decision["message"])
        case NeedsAnswer(asked_by=None), "reject":
            event.fail(decision.get("message", "the user gave no answer"))
        case NeedsAnswer(), "reject":
            event.decline()
        case _, other:
            raise ValueError(f"{event.tool} cannot be decided on by {other!r}")
