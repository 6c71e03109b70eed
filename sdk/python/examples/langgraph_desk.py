"""An agent of LangChain whose tools are on the fleet: `pip install toolyard[langgraph] langchain-openai`."""

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import toolyard
from toolyard.adapters.langgraph import Fleet

fleet = Fleet(toolyard.Client(), pool="desk")
agent = create_agent(ChatOpenAI(model="scripted"), middleware=[fleet.middleware], checkpointer=InMemorySaver())
config = {"configurable": {"thread_id": "trip"}}
state = agent.invoke({"messages": [{"role": "user", "content": "holiday"}]}, config)
while interrupts := state.get("__interrupt__"):
    asked = interrupts[0].value["action_requests"]
    print("approve", *[f"{it['name']}({it['args']['city']})" for it in asked])
    state = agent.invoke(Command(resume={"decisions": [{"type": "approve"} for _ in asked]}), config)
for message in state["messages"]:
    if isinstance(message, ToolMessage):
        print(f"{message.name}: {message.status}: {message.content}")
print(state["messages"][-1].text)
