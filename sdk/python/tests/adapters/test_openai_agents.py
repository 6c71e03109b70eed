"""OpenAI's Agents SDK: the calls of a response are one run; the SDK asks for approvals."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from conftest import Yard

import toolyard

pytest.importorskip("agents", reason="openai-agents is not installed: sdk/python/run adapters installs it")

from agents import Agent, OpenAIChatCompletionsModel, Runner, RunState
from openai import AsyncOpenAI

from toolyard.adapters.openai_agents import Fleet

from .conftest import Model


def test_the_example_prints_what_the_docs_say(example: Any) -> None:
    printed = example("openai_agents_desk.py").splitlines()
    assert json.loads(printed[0].removeprefix("approve book ")) == {"city": "Rome"}
    assert sorted(printed[1:-1]) == [
        "Error: there is no city Atlantis",
        "Rome: sunny",
        "a seat to Rome is booked",
    ]
    assert printed[-1] == "You fly to Rome."


def test_a_rejected_call_is_never_executed_and_the_others_are_one_run(
    desk: toolyard.Client, yard: Yard, model: Model
) -> None:
    class Recorded(toolyard.AsyncClient):
        """Notes what is asked of the fleet."""

        turns: list[Any] = []  # noqa: RUF012

        def turn(self, message: Any, **options: Any) -> toolyard.AsyncTurn:
            self.turns.append([call["function"]["name"] for call in message["tool_calls"]])
            return super().turn(message, **options)

    async def run() -> list[str]:
        client = Recorded(yard.url)
        fleet = await Fleet.load(client, pool="desk")
        served = AsyncOpenAI(base_url=model.openai.removesuffix("/chat/completions"), api_key="none")
        agent = Agent(name="desk", model=OpenAIChatCompletionsModel("scripted", served), tools=fleet.tools)
        result = await Runner.run(agent, "holiday", hooks=fleet.hooks)
        [item] = result.interruptions
        state = result.to_state()
        state.reject(item, rejection_message="not this week")
        result = await Runner.run(agent, state, hooks=fleet.hooks)
        assert client.turns == [["forecast", "forecast"]]
        return [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]

    said = asyncio.run(run())
    assert sorted(said) == ["Error: there is no city Atlantis", "Rome: sunny", "not this week"]


def test_a_stored_state_goes_on_in_another_process(desk: toolyard.Client, yard: Yard, model: Model) -> None:
    async def agent() -> tuple[Agent[Any], Fleet]:
        fleet = await Fleet.load(toolyard.AsyncClient(yard.url), pool="desk")
        served = AsyncOpenAI(base_url=model.openai.removesuffix("/chat/completions"), api_key="none")
        return Agent(name="desk", model=OpenAIChatCompletionsModel("scripted", served), tools=fleet.tools), fleet

    async def run() -> tuple[list[str], Any]:
        first, fleet = await agent()
        stored = (await Runner.run(first, "holiday", hooks=fleet.hooks)).to_state().to_json()
        second, fleet = await agent()
        state = await RunState.from_json(second, stored)
        for item in state.get_interruptions():
            state.approve(item)
        result = await Runner.run(second, state, hooks=fleet.hooks)
        return [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"], result

    said, result = asyncio.run(run())
    assert "a seat to Rome is booked" in said
    assert result.final_output == "You fly to Rome."
