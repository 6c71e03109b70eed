"""An agent of OpenAI's Agents SDK whose tools are on the fleet: `pip install toolyard[openai-agents]`."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI

import toolyard
from toolyard.adapters.openai_agents import Fleet


async def main() -> None:
    fleet = await Fleet.load(toolyard.AsyncClient(), pool="desk")
    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI())
    agent = Agent(name="desk", model=model, tools=fleet.tools)
    result = await Runner.run(agent, "holiday", hooks=fleet.hooks)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            print("approve", item.name, item.arguments)
            state.approve(item)
        result = await Runner.run(agent, state, hooks=fleet.hooks)
    for item in result.new_items:
        if item.type == "tool_call_output_item":
            print(item.output)
    print(result.final_output)


asyncio.run(main())
