"""An agent of Google's ADK whose tools are on the fleet: `pip install toolyard[google-adk] litellm`."""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, FunctionResponse, Part

import toolyard
from toolyard.adapters.google_adk import Fleet


async def main() -> None:
    fleet = await Fleet.load(toolyard.AsyncClient(), pool="desk")
    model = LiteLlm("openai/scripted", api_base=os.environ["OPENAI_BASE_URL"])
    agent = LlmAgent(name="desk", model=model, tools=[*fleet.tools], after_model_callback=fleet.after_model)
    runner = InMemoryRunner(agent, app_name="desk")
    session = await runner.session_service.create_session(app_name="desk", user_id="ada")
    answers = [Part(text="holiday")]
    while answers:
        asked = Content(role="user", parts=answers)
        answers = []
        async for event in runner.run_async(user_id="ada", session_id=session.id, new_message=asked):
            for call in event.get_function_calls():
                if call.name == "adk_request_confirmation":
                    print("approve", call.args["originalFunctionCall"]["name"])
                    confirmed = FunctionResponse(id=call.id, name=call.name, response={"confirmed": True})
                    answers.append(Part(function_response=confirmed))
            for answer in event.get_function_responses():
                print(answer.name, answer.response)
            if event.content and event.content.parts[-1].text:
                print(event.content.parts[-1].text)


asyncio.run(main())
