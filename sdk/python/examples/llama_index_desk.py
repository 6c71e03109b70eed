"""An agent of LlamaIndex whose tools are on the fleet.

`pip install toolyard[llama-index] llama-index-llms-openai-like`
"""

import asyncio
import os

from llama_index.core.agent.workflow import ToolCallResult
from llama_index.llms.openai_like import OpenAILike

import toolyard
from toolyard.adapters.llama_index import ApprovalRequired, Fleet, FleetAgent


async def main() -> None:
    fleet = await Fleet.load(toolyard.AsyncClient(), pool="desk")
    llm = OpenAILike(
        model="scripted",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
    )
    handler = FleetAgent(fleet=fleet, llm=llm, streaming=False).run("holiday")
    async for event in handler.stream_events():
        if isinstance(event, ApprovalRequired):
            print("approve", event.tool, event.arguments)
            handler.ctx.send_event(event.approve())
        elif isinstance(event, ToolCallResult):
            print(f"{event.tool_name}: {event.tool_output.is_error}: {event.tool_output.content}")
    print(await handler)


asyncio.run(main())
