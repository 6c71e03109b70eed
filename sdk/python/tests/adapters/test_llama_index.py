"""LlamaIndex: the calls of a message are one run; approvals are events of the workflow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import Yard

import toolyard

pytest.importorskip(
    "llama_index.core", reason="llama-index-core is not installed: sdk/python/run llama-index installs it"
)
pytest.importorskip("llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed")

from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]

from toolyard.adapters.llama_index import ApprovalRequired, Fleet, FleetAgent

from .conftest import Model


def served(model: Model) -> Any:
    base = model.openai.removesuffix("/chat/completions")
    return OpenAILike(
        model="scripted", api_base=base, api_key="none", is_chat_model=True, is_function_calling_model=True
    )


def test_the_example_prints_what_the_docs_say(example: Any) -> None:
    printed = example("llama_index_desk.py").splitlines()
    assert sorted(printed[:-1]) == [
        "approve book {'city': 'Rome'}",
        "book: False: a seat to Rome is booked",
        "forecast: False: Rome: sunny",
        "forecast: True: Error: there is no city Atlantis",
    ]
    assert printed[-1] == "You fly to Rome."


def test_a_rejected_call_is_never_executed_and_the_others_are_one_run(
    desk: toolyard.Client, yard: Yard, model: Model
) -> None:
    turns: list[Any] = []

    class Recorded(toolyard.AsyncClient):
        """Notes what is asked of the fleet."""

        def turn(self, message: Any, **options: Any) -> toolyard.AsyncTurn:
            turns.append([call["function"]["name"] for call in message["tool_calls"]])
            return super().turn(message, **options)

    async def run() -> list[str]:
        fleet = await Fleet.load(Recorded(yard.url), pool="desk")
        handler = FleetAgent(fleet=fleet, llm=served(model), streaming=False).run("holiday")
        said = []
        async for event in handler.stream_events():
            if isinstance(event, ApprovalRequired):
                handler.ctx.send_event(event.reject("not this week"))
            elif isinstance(event, ToolCallResult):
                said.append(str(event.tool_output.content))
        assert str(await handler) == "You fly to Rome."
        return said

    said = asyncio.run(run())
    assert sorted(said) == ["Error: not this week", "Error: there is no city Atlantis", "Rome: sunny"]
    assert turns == [["forecast", "forecast"]]


@pytest.mark.parametrize("is_fleet_agent", [True, False])
def test_an_approval_counts_once(desk: toolyard.Client, yard: Yard, model: Model, is_fleet_agent: bool) -> None:
    async def run() -> tuple[int, list[str]]:
        fleet = await Fleet.load(toolyard.AsyncClient(yard.url), pool="desk")
        llm = served(model)
        agent = (
            FleetAgent(fleet=fleet, llm=llm, streaming=False)
            if is_fleet_agent
            else FunctionAgent(tools=fleet.tools, llm=llm, streaming=False)
        )
        handler = agent.run("twice")
        approvals, said = 0, []
        async for event in handler.stream_events():
            if isinstance(event, ApprovalRequired):
                approvals += 1
                handler.ctx.send_event(event.approve())
            elif isinstance(event, ToolCallResult):
                said.append(str(event.tool_output.content))
        assert str(await handler) == "You fly to Rome twice."
        return approvals, said

    assert asyncio.run(run()) == (2, ["a seat to Rome is booked"] * 2)
