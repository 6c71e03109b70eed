"""Google's ADK: the calls of a response are one run; approvals are tool confirmations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import Yard

import toolyard

pytest.importorskip("google.adk", reason="google-adk is not installed: sdk/python/run google-adk installs it")
pytest.importorskip("litellm", reason="litellm is not installed")


from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, FunctionResponse, Part

from toolyard.adapters.google_adk import Fleet

from .conftest import Model


def test_the_example_prints_what_the_docs_say(example: Any) -> None:
    printed = example("google_adk_desk.py").splitlines()
    assert sorted(printed[:-1]) == [
        "approve book",
        "book {'error': 'the call waits for an approval'}",
        "book {'result': 'a seat to Rome is booked'}",
        "forecast {'error': 'Error: there is no city Atlantis'}",
        "forecast {'result': 'Rome: sunny'}",
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

    async def run() -> list[Any]:
        fleet = await Fleet.load(Recorded(yard.url), pool="desk")
        base = model.openai.removesuffix("/chat/completions")
        agent = LlmAgent(
            name="desk",
            model=LiteLlm("openai/scripted", api_base=base, api_key="none"),
            tools=[*fleet.tools],
            after_model_callback=fleet.after_model,
        )
        runner = InMemoryRunner(agent, app_name="desk")
        session = await runner.session_service.create_session(app_name="desk", user_id="ada")
        answers, said = [Part(text="holiday")], []
        while answers:
            asked, answers = Content(role="user", parts=answers), []
            async for event in runner.run_async(user_id="ada", session_id=session.id, new_message=asked):
                for call in event.get_function_calls():
                    if call.name == "adk_request_confirmation":
                        rejected = FunctionResponse(id=call.id, name=call.name, response={"confirmed": False})
                        answers.append(Part(function_response=rejected))
                said += [it.response for it in event.get_function_responses()]
        return said

    said = asyncio.run(run())
    assert {"result": "Rome: sunny"} in said
    assert {"error": "Error: there is no city Atlantis"} in said
    assert said[-1] == {"error": "the call was rejected"}
    assert turns == [["forecast", "forecast"]]
