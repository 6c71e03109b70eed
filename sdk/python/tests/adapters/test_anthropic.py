"""Anthropic's tool runner: the calls of a message are one run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from conftest import Yard

import toolyard

pytest.importorskip(
    "anthropic.lib.tools._beta_runner", reason="anthropic is not installed: sdk/python/run adapters installs it"
)

from anthropic import Anthropic, AsyncAnthropic

from toolyard.adapters.anthropic import drive, drive_async

from .conftest import Model


def results(messages: Any) -> list[tuple[Any, str]]:
    """The results that the model was given."""
    blocks = [block for message in messages if message["role"] == "user" for block in message["content"]]
    found = [block for block in blocks if isinstance(block, dict)]
    return [(block.get("is_error", False), "".join(part["text"] for part in block["content"])) for block in found]


def test_the_example_prints_what_the_docs_say(example: Any) -> None:
    assert example("anthropic_desk.py").splitlines() == [
        "I look at the weather, and book.",
        "tool_use: forecast {'city': 'Rome'}",
        "tool_use: forecast {'city': 'Atlantis'}",
        "tool_use: book {'city': 'Rome'}",
        "approve book {'city': 'Rome'}",
        "You fly to Rome.",
    ]


def test_a_call_that_nobody_can_approve_is_refused(desk: toolyard.Client, model: Model) -> None:
    served = Anthropic(base_url=model.anthropic.removesuffix("/v1/messages"), api_key="none")
    tools = desk.tools("anthropic", pool="desk")
    asked: Any = [{"role": "user", "content": "holiday"}]
    runner = served.beta.messages.tool_runner(
        model="scripted", max_tokens=99, tools=tools, messages=asked, thread=False
    )
    sent: list[Any] = []

    def note(params: Any) -> Any:
        sent[:] = params["messages"]
        return params

    for _ in drive(runner, desk):
        runner.set_messages_params(note)
    good, failed, refused = results(sent)
    assert (good, failed) == ((False, "Rome: sunny"), (True, "there is no city Atlantis"))
    assert refused[0] is True
    assert "nobody can approve this call here" in refused[1]


def test_an_async_runner_has_its_calls_executed_too(yard: Yard, desk: toolyard.Client, model: Model) -> None:
    async def run() -> list[str]:
        client = toolyard.AsyncClient(yard.url)
        served = AsyncAnthropic(base_url=model.anthropic.removesuffix("/v1/messages"), api_key="none")
        tools = await client.tools("anthropic", pool="desk")
        asked: Any = [{"role": "user", "content": "holiday"}]
        runner = served.beta.messages.tool_runner(
            model="scripted", max_tokens=99, tools=tools, messages=asked, thread=False
        )
        approvals: list[Any] = []

        def approve(event: toolyard.NeedsApproval) -> bool:
            approvals.append(event.arguments)
            return True

        driven = drive_async(runner, client, on_approval=approve)
        texts = [message.content[0].text async for message in driven if message.content[0].type == "text"]
        return [*texts, json.dumps(approvals)]

    assert asyncio.run(run()) == ["I look at the weather, and book.", "You fly to Rome.", '[{"city": "Rome"}]']
