"""Anthropic's tool runner with tools on the fleet: `pip install toolyard[anthropic]`."""

import anthropic

import toolyard
from toolyard.adapters.anthropic import drive


def on_approval(event: toolyard.NeedsApproval) -> bool:
    print("approve", event.tool, event.arguments)
    return True


yard = toolyard.Client()
runner = anthropic.Anthropic().beta.messages.tool_runner(
    model="scripted",
    max_tokens=1024,
    thread=False,  # the scripted model keeps no threads; others may
    tools=yard.tools("anthropic", pool="desk"),
    messages=[{"role": "user", "content": "holiday"}],
)
for message in drive(runner, yard, on_approval=on_approval):
    for block in message.content:
        print(block.text if block.type == "text" else f"{block.type}: {block.name} {block.input}")
