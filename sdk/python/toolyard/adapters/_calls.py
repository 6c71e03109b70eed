"""What all adapters share: the definitions of tools, and calls of a framework as a message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import AsyncClient, AsyncTurn, Client, NeedsAnswer, NeedsApproval, TurnResult

if TYPE_CHECKING:
    from .._options import TurnOptions

#: The id, the name and the arguments of a call, as values or as JSON.
Call: TypeAlias = "tuple[str, str, Any]"


@dataclass(frozen=True)
class Definition:
    """A tool as a model sees it."""

    name: str
    description: str
    schema: dict[str, Any]
    #: No call of it is executed before somebody approves it.
    needs_approval: bool


@dataclass(frozen=True)
class Answer:
    """What a model is told about one call."""

    text: str
    is_error: bool


def definitions(client: Client, **filters: Any) -> list[Definition]:
    """The tools of the fleet, by the names that models call them by."""
    return _paired(client.tools(**filters), client.tools("openai-chat", **filters))


async def definitions_async(client: AsyncClient, **filters: Any) -> list[Definition]:
    """As :func:`definitions`."""
    return _paired(await client.tools(**filters), await client.tools("openai-chat", **filters))


def _paired(tools: Sequence[Mapping[str, Any]], exported: Sequence[Mapping[str, Any]]) -> list[Definition]:
    # Both lists have the same order. If the fleet changed between them, a framework may ask in vain or not ask; the
    # fleet itself asks in any case.
    waits = [bool(tool.get("needs_approval")) for tool in tools] + [False] * len(exported)
    functions = [tool["function"] for tool in exported]
    return [
        Definition(it["name"], it.get("description", ""), it.get("parameters") or {"type": "object"}, needs_approval)
        for it, needs_approval in zip(functions, waits, strict=False)
    ]


def message(calls: Iterable[Call]) -> dict[str, Any]:
    """Calls as a message of Chat Completions."""

    def text(arguments: Any) -> str:
        return arguments if isinstance(arguments, str) else json.dumps(arguments or {})

    return {
        "role": "assistant",
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": text(arguments)}}
            for call_id, name, arguments in calls
        ],
    }


def answers(result: TurnResult) -> dict[str, Answer]:
    """What the model is told about each call of :func:`message` that has ended."""
    completed = {end.call_id for end in result.results if end.state == "completed"}
    found: dict[str, Answer] = {}
    for it in result.messages:
        if it.get("role") == "tool":
            content = it["content"]
            text = content if isinstance(content, str) else json.dumps(content)
            found[it["tool_call_id"]] = Answer(text, it["tool_call_id"] not in completed)
    return found


async def execute(client: AsyncClient, calls: Sequence[Call], options: TurnOptions) -> dict[str, Answer]:
    """Has calls executed as one run."""
    in_form: TurnOptions = {**options, "form": "openai-chat"}
    return answers(await settled(client.turn(message(calls), **in_form)))


async def settled(turn: AsyncTurn) -> TurnResult:
    """The result of a turn with all its answers.

    What waits for somebody, although the framework did not ask, is refused: it has no way to ask any more.
    """
    while (result := await turn).open:
        for event in result.open:
            await refuse(event)
    return result


def refuse(event: NeedsApproval | NeedsAnswer) -> Any:
    """Refuses what nobody can decide or answer. Awaited with an async client."""
    if isinstance(event, NeedsApproval):
        return event.reject("nobody can approve this call here")
    return event.fail("nobody can answer this call here") if event.asked_by is None else event.decline()
