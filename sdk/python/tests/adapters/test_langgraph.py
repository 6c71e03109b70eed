"""LangGraph: a message's calls are one run; approvals and questions are interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Worker, Yard

import toolyard

pytest.importorskip("langchain", reason="LangChain is not installed: sdk/python/run adapters installs it")
pytest.importorskip("langgraph", reason="LangGraph is not installed: sdk/python/run adapters installs it")

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from toolyard.adapters.langgraph import Fleet


def asked(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    listed = [
        ToolCall(name=name, args=args, id=f"c{index}", type="tool_call") for index, (name, args) in enumerate(calls)
    ]
    return AIMessage("", tool_calls=listed)


def graph(fleet: Fleet, saver: InMemorySaver) -> Any:
    built = StateGraph(MessagesState)
    built.add_node("tools", fleet.node)
    built.add_edge(START, "tools")
    return built.compile(checkpointer=saver)


def said(state: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message.status, message.content) for message in state["messages"][1:]]


CONFIG = {"configurable": {"thread_id": "one"}}
TRIP = (("forecast", {"city": "Rome"}), ("forecast", {"city": "Atlantis"}), ("book", {"city": "Rome"}))


def test_the_example_prints_what_the_docs_say(example: Any) -> None:
    pytest.importorskip("langchain_openai")
    assert example("langgraph_desk.py").splitlines() == [
        "approve book(Rome)",
        "forecast: success: Rome: sunny",
        "forecast: error: Error: there is no city Atlantis",
        "book: success: a seat to Rome is booked",
        "You fly to Rome.",
    ]


def test_a_resumed_graph_of_another_process_finds_its_run(desk: toolyard.Client, yard: Yard) -> None:
    saver = InMemorySaver()
    first = graph(Fleet(desk, pool="desk"), saver)
    stopped = first.invoke({"messages": [asked(*TRIP)]}, CONFIG)
    [waiting] = stopped["__interrupt__"]
    assert waiting.value["action_requests"][0]["args"] == {"city": "Rome"}
    # Another client and another graph, with the same checkpoints.
    second = graph(Fleet(toolyard.Client(yard.url), pool="desk"), saver)
    state = second.invoke(Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
    assert said(state) == [
        ("success", "Rome: sunny"),
        ("error", "Error: there is no city Atlantis"),
        ("success", "a seat to Rome is booked"),
    ]


def test_a_rejection_and_an_edit_reach_the_model(desk: toolyard.Client) -> None:
    running = graph(Fleet(desk, pool="desk"), InMemorySaver())
    running.invoke({"messages": [asked(("book", {"city": "Rome"}), ("book", {"city": "Oslo"}))]}, CONFIG)
    edit = {"type": "edit", "edited_action": {"name": "book", "args": {"city": "Turin"}}}
    decisions = [edit, {"type": "reject", "message": "too cold"}]
    state = running.invoke(Command(resume={"decisions": decisions}), CONFIG)
    first, second = said(state)
    assert first == ("success", "a seat to Turin is booked")
    assert second[0] == "error"
    assert "too cold" in second[1]


def test_an_async_graph_is_interrupted_and_resumed(desk: toolyard.Client) -> None:
    async def run() -> Any:
        running = graph(Fleet(desk, pool="desk"), InMemorySaver())
        await running.ainvoke({"messages": [asked(("book", {"city": "Rome"}))]}, CONFIG)
        return await running.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)

    assert said(asyncio.run(run())) == [("success", "a seat to Rome is booked")]


@pytest.fixture
def counter(yard: Yard, tmp_path: Path) -> Iterator[Path]:
    """A tool that needs an approval, asks when it runs, and notes each execution."""
    (tmp_path / "app.py").write_text(
        f"""
from toolyard import App, Context
app = App("counter")

@app.tool(needs_approval=True)
async def count(ctx: Context) -> str:
    "Counts."
    with open({str(tmp_path / "ran")!r}, "a") as file:
        file.write("x")
    return repr(await ctx.ask("Which colour?", options=["red", "blue"]))
"""
    )
    worker = Worker(tmp_path, yard.nats_url)
    yield tmp_path / "ran"
    worker.kill()


def test_each_interrupt_of_a_run_gets_its_own_decision_and_the_call_runs_once(
    counter: Path, desk: toolyard.Client, yard: Yard
) -> None:
    saver = InMemorySaver()
    first = graph(Fleet(desk, pool="counter"), saver)
    first.invoke({"messages": [asked(("count", {}))]}, CONFIG)
    stopped = first.invoke(Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
    assert stopped["__interrupt__"][0].value["action_requests"][0]["description"] == "Which colour?"
    second = graph(Fleet(toolyard.Client(yard.url), pool="counter"), saver)
    state = second.invoke(Command(resume={"decisions": [{"type": "respond", "message": "red"}]}), CONFIG)
    [(status, text)] = said(state)
    assert (status, "red" in text) == ("success", True)
    assert counter.read_text() == "x"


def test_a_decision_too_few_is_an_error_and_changes_nothing(desk: toolyard.Client) -> None:
    running = graph(Fleet(desk, pool="desk"), InMemorySaver())
    running.invoke({"messages": [asked(("book", {"city": "Rome"}))]}, CONFIG)
    with pytest.raises(ValueError, match="1 calls wait, and there are 0 decisions"):
        running.invoke(Command(resume={"decisions": []}), CONFIG)


def test_an_agent_executes_its_own_tools_beside_those_of_the_fleet(desk: toolyard.Client) -> None:
    def double(number: int) -> int:
        """Doubles a number."""
        return number * 2

    calls = asked(("forecast", {"city": "Rome"}), ("double", {"number": 4}), ("forecast", {"city": 7}))
    fleet = Fleet(desk, pool="desk")
    agent: Any = create_agent(Said(messages=iter([calls, AIMessage("done")])), [double], middleware=[fleet.middleware])
    state = agent.invoke({"messages": [{"role": "user", "content": "go"}]})
    texts = {message.tool_call_id: message.content for message in state["messages"] if isinstance(message, ToolMessage)}
    assert (texts["c0"], texts["c1"]) == ("Rome: sunny", "8")
    assert "7 is not of type string" in texts["c2"]
    assert state["messages"][-1].content == "done"


class Said(GenericFakeChatModel):
    """A model that says what it was given, and takes tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        assert sorted(getattr(tool, "name", "") for tool in tools) == ["book", "double", "forecast"]
        return self
