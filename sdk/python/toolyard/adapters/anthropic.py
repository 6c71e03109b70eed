"""Anthropic's tool runner: the tool calls of a message are one run of the fleet.

::

    runner = anthropic.Anthropic().beta.messages.tool_runner(tools=yard.tools("anthropic", pool="files"), ...)
    for message in drive(runner, yard, on_approval=lambda event: input(f"{event.tool}? ") == "yes"):
        ...

The runner has no approvals of its own: ``on_approval`` and ``on_question`` are those of a turn, and may be async with
:func:`drive_async`. Without them a call that waits is refused, and the model reads that. All tools of the runner are
the fleet's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, cast

from anthropic.lib.tools import BetaAsyncToolRunner, BetaToolRunner
from anthropic.types.beta import BetaMessage, BetaMessageParam

from .. import AsyncClient, Client
from ._calls import refuse, settled

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options import TurnOptions

__all__ = ["drive", "drive_async"]


def drive(runner: BetaToolRunner[Any], client: Client, **options: Unpack[TurnOptions]) -> Iterator[BetaMessage]:
    """The messages of a runner, whose tool calls are executed on the fleet. It does not stream."""
    last: BetaMessage | None = None

    def respond() -> BetaMessageParam | None:
        if not _calls(last):
            return None
        turn = client.turn(last, **_in_form(options))
        while (result := turn.result()).open:
            for event in result.open:
                refuse(event)
        return cast("BetaMessageParam", result.messages[0])

    runner.generate_tool_call_response = respond  # type: ignore[method-assign, assignment]
    for last in runner:
        yield last


async def drive_async(
    runner: BetaAsyncToolRunner[Any], client: AsyncClient, **options: Unpack[TurnOptions]
) -> AsyncIterator[BetaMessage]:
    """As :func:`drive`."""
    last: BetaMessage | None = None

    async def respond() -> BetaMessageParam | None:
        if not _calls(last):
            return None
        result = await settled(client.turn(last, **_in_form(options)))
        return cast("BetaMessageParam", result.messages[0])

    runner.generate_tool_call_response = respond  # type: ignore[method-assign, assignment]
    async for last in runner:
        yield last


def _calls(message: BetaMessage | None) -> bool:
    return message is not None and any(block.type == "tool_use" for block in message.content)


def _in_form(options: TurnOptions) -> TurnOptions:
    return {**options, "form": "anthropic"}
