"""An agent of Pydantic AI whose tools are on the fleet: `pip install toolyard[pydantic-ai]`."""

import asyncio

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ToolReturnPart

import toolyard
from toolyard.adapters.pydantic_ai import Fleet


async def main() -> None:
    fleet = await Fleet.load(toolyard.AsyncClient(), pool="desk")
    agent = Agent(
        "openai-chat:scripted",
        toolsets=[fleet],
        capabilities=[fleet.capability],
        output_type=[str, DeferredToolRequests],
    )
    result = await agent.run("holiday")
    while isinstance(result.output, DeferredToolRequests):
        decisions = DeferredToolResults()
        for call in result.output.approvals:
            print("approve", call.tool_name, call.args_as_dict())
            decisions.approvals[call.tool_call_id] = True
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=decisions)
    for message in result.all_messages():
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                print(f"{part.tool_name}: {part.outcome}: {part.content}")
    print(result.output)


asyncio.run(main())
