"""Pydantic AI: external tools are executed on the fleet; approvals are deferred."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import Yard

import toolyard

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: sdk/python/run adapters installs it")

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from toolyard.adapters.pydantic_ai import Fleet

from .conftest import Model


def test_the_example_prints_what_the_docs_say(example: Any) -> None:
    printed = example("pydantic_ai_desk.py").splitlines()
    assert printed[0] == "approve book {'city': 'Rome'}"
    assert sorted(printed[1:-1]) == [
        "book: success: a seat to Rome is booked",
        "forecast: failed: Error: there is no city Atlantis",
        "forecast: success: Rome: sunny",
    ]
    assert printed[-1] == "You fly to Rome."


def test_without_the_capability_all_calls_are_given_out(desk: toolyard.Client, yard: Yard, model: Model) -> None:
    async def run() -> list[tuple[str, Any]]:
        fleet = await Fleet.load(toolyard.AsyncClient(yard.url), pool="desk")
        provider = OpenAIProvider(base_url=model.openai.removesuffix("/chat/completions"), api_key="none")
        agent = Agent(
            OpenAIChatModel("scripted", provider=provider), toolsets=[fleet], output_type=[str, DeferredToolRequests]
        )
        first = await agent.run("holiday")
        assert isinstance(first.output, DeferredToolRequests)
        assert [call.tool_name for call in first.output.calls] == ["forecast", "forecast"]
        [booking] = first.output.approvals
        results: DeferredToolResults = await fleet.execute(first.output)
        results.approvals[booking.tool_call_id] = ToolDenied("not this week")
        last = await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
        assert last.output == "You fly to Rome."
        parts = [part for message in last.all_messages() for part in message.parts]
        return [(part.outcome, part.content) for part in parts if isinstance(part, ToolReturnPart)]

    said = asyncio.run(run())
    assert sorted(said) == [
        ("denied", "not this week"),
        ("failed", "Error: there is no city Atlantis"),
        ("success", "Rome: sunny"),
    ]
