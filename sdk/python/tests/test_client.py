"""Clients: models' messages go in, what their SDKs take next comes out; approvals, questions, broken connections."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Host, Proxy, Worker, Yard, texts, turn

import toolyard
from toolyard import (
    AsyncClient,
    CallEnded,
    Client,
    Decline,
    Ended,
    Event,
    NeedsAnswer,
    NeedsApproval,
    Opened,
    Output,
    RequestError,
)
from toolyard._bridge import wait

APP = """
    import asyncio
    from typing import Annotated
    from toolyard import Accepted, App, Context, Given, Image

    app = App("clients")

    @app.tool(read_only=True)
    async def say(text: str, pause: float = 0.0, times: int = 1):
        "Says."
        for _ in range(times):
            yield text
            await asyncio.sleep(pause)

    @app.tool(needs_approval=True)
    def delete(name: str) -> str:
        "Deletes."
        return f"{name} is deleted"

    @app.tool
    async def choose(ctx: Context) -> str:
        "Asks."
        return repr(await ctx.ask("Which?", options=["red", "blue"]))

    @app.tool(read_only=True)
    async def read(name: str, ctx: Context, user: Annotated[str, Given()] = "nobody") -> str:
        "Reads."
        return f"{user}: {(await ctx.read(name)).decode()}"

    @app.tool(read_only=True)
    def picture() -> Image:
        "Paints."
        return Image(b"x" * 600_000, "image/png")

    @app.tool(timeout=1)
    async def gives_up(ctx: Context) -> None:
        "Does not wait for its answer."
        try:
            await asyncio.wait_for(ctx.ask("Which?"), 0.1)
        except asyncio.TimeoutError:
            await ctx.send("gave up")
        await asyncio.sleep(600)

    @app.tool(read_only=True)
    async def waits(ctx: Context) -> None:
        "Waits."
        await ctx.send("begun")
        await asyncio.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def worker(yard: Yard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    import textwrap

    folder = tmp_path_factory.mktemp("clients")
    (folder / "app.py").write_text(textwrap.dedent(APP))
    running = Worker(folder, yard.nats_url)
    yield running
    running.kill()


def test_openai_responses(client: Client) -> None:
    responses = pytest.importorskip("openai.types.responses")
    response = responses.Response.model_validate(
        {
            "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt", "status": "completed",
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "output": [
                {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "say", "arguments": '{"text":"one"}'},
                {"type": "function_call", "id": "fc_2", "call_id": "b", "name": "say", "arguments": '{"text":'},
            ],
        }
    )  # fmt: skip
    first, second = client.run_calls(response)
    assert (first["type"], first["call_id"], first["output"]) == ("function_call_output", "a", "one\nDone")
    assert (second["call_id"], second["output"].startswith("Error: ")) == ("b", True)


def test_openai_chat_completions(client: Client) -> None:
    chat = pytest.importorskip("openai.types.chat")
    call = {"id": "a", "type": "function", "function": {"name": "say", "arguments": '{"text":"one"}'}}
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    completion = chat.ChatCompletion.model_validate(
        {
            "id": "c", "object": "chat.completion", "created": 1, "model": "gpt",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "logprobs": None, "message": message}],
        }
    )  # fmt: skip
    for sent in (completion, completion.choices[0].message, message):
        assert client.run_calls(sent) == [{"role": "tool", "tool_call_id": "a", "content": "one\nDone"}]


def test_anthropic(client: Client) -> None:
    types = pytest.importorskip("anthropic.types")
    message = types.Message(
        id="m", type="message", role="assistant", model="claude", stop_reason="tool_use",
        content=[types.ToolUseBlock(type="tool_use", id="t", name="picture", input={})],
        usage=types.Usage(input_tokens=1, output_tokens=1),
    )  # fmt: skip
    [answer] = client.run_calls(message)
    [result] = answer["content"]
    # The image is larger than the log takes, so it was stored, and read again for the model.
    assert (result["tool_use_id"], result["content"][0]["type"]) == ("t", "image")
    assert len(result["content"][0]["source"]["data"]) == 800_000


def test_google_genai(client: Client) -> None:
    types = pytest.importorskip("google.genai.types")
    part = types.Part(function_call=types.FunctionCall(id="f", name="say", args={"text": "one"}))
    content = types.Content(role="model", parts=[part])
    response = types.GenerateContentResponse(candidates=[types.Candidate(content=content)])
    [message] = client.run_calls(response)
    [answer] = types.Content.model_validate(message).parts
    assert (answer.function_response.id, answer.function_response.name) == ("f", "say")


def test_tools_are_described_in_the_format_of_each_vendor(client: Client) -> None:
    names: dict[str, Callable[[Any], str]] = {
        "openai": lambda it: it["name"],
        "openai-chat": lambda it: it["function"]["name"],
        "anthropic": lambda it: it["name"],
        "mcp": lambda it: it["name"],
    }
    for format, name in names.items():
        listed = client.tools(format, pool="clients")  # type: ignore[arg-type]
        assert {name(it) for it in listed} == {"choose", "delete", "gives_up", "picture", "read", "say", "waits"}
    [say] = client.tools("anthropic", pool="clients", name="say")
    assert say["input_schema"]["properties"]["text"] == {"type": "string"}
    with pytest.raises(RequestError, match="use one of openai"):
        client.tools("other")  # type: ignore[arg-type]


def test_events_come_in_order_and_the_result_has_the_calls_in_theirs(client: Client) -> None:
    running = client.turn(turn(("say", {"text": "a", "times": 3}), ("say", {"text": "b"})))
    events = list(running)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert isinstance(events[0], Opened)
    assert isinstance(events[-1], Ended)
    run_id = running.run_id
    assert run_id is not None
    assert list(client.events(run_id, after=3, floor="interleaved")) == events[4:]
    said = [(event.call_id, event.text) for event in events if isinstance(event, Output)]
    assert sorted(said) == [("c0", "a"), ("c0", "a"), ("c0", "a"), ("c1", "b")]
    result = running.result()
    assert texts(result) == ["aaaDone", "bDone"]
    assert [(end.call_id, end.value, end.state) for end in result.results] == [
        ("c0", "Done", "completed"),
        ("c1", "Done", "completed"),
    ]
    assert (result.complete, result.status, result.run_id) == (True, "completed", running.run_id)


def test_an_approval_is_given_or_refused_while_events_are_read(client: Client) -> None:
    running = client.turn(turn(("delete", {"name": "x"}), ("delete", {"name": "y"}), ("delete", {"name": "z"})))
    for event in running:
        if isinstance(event, NeedsApproval):
            assert event.tool == "delete"
            if event.arguments == {"name": "x"}:
                event.approve()
            elif event.arguments == {"name": "y"}:
                event.approve({"name": "yy"})
            else:
                event.reject("not that one")
    first, second, third = texts(running.result())
    assert (first, second) == ("x is deleted", "yy is deleted")
    assert "not that one" in third


def test_approvals_are_given_by_a_callback_or_later(client: Client) -> None:
    message = turn(("delete", {"name": "x"}))
    assert texts(client.turn(message, on_approval=lambda event: True).result()) == ["x is deleted"]
    assert "because" in texts(client.turn(message, on_approval=lambda event: "because").result())[0]
    with pytest.raises(RequestError, match="wait for somebody to act: c0"):
        client.run_calls(message)
    running = client.turn(message, on_approval=lambda event: None)
    result = running.result()
    assert (result.complete, result.messages, result.status) == (False, [], "requires_action")
    [waiting] = result.open
    assert isinstance(waiting, NeedsApproval)
    waiting.approve()
    assert texts(running.result()) == ["x is deleted"]


def test_questions_of_functions_and_calls_for_the_client_are_answered(client: Client) -> None:
    message = turn(("choose", {}))
    assert texts(client.turn(message, on_question=lambda event: "blue").result()) == ["Accepted(value='blue')"]
    assert texts(client.turn(message, on_question=lambda event: Decline()).result()) == ["Decline()"]
    running = client.turn(message)
    for event in running:
        if isinstance(event, NeedsAnswer):
            assert (event.question, event.asked_by) == ("Which?", "c0")
            with pytest.raises(RequestError):
                event.answer("green")
            event.answer("red")
    assert texts(running.result()) == ["Accepted(value='red')"]
    asks = client.turn(turn(("ask_user", {"question": "Name?"})), on_question=lambda event: "Ada")
    assert texts(asks.result()) == ["Ada"]


def test_the_time_of_an_attempt_goes_on_when_its_function_gives_a_question_up(client: Client) -> None:
    events = list(client.turn(turn(("gives_up", {})), timeout=60))
    assert [event.text for event in events if isinstance(event, Output)] == ["gave up"]
    [ended] = [event for event in events if isinstance(event, CallEnded) and event.call_id == "c0"]
    assert (ended.state, ended.error_kind) == ("failed", "ATTEMPT_TIMEOUT")


def test_nothing_is_read_for_a_turn_or_events_that_nobody_has_any_more(client: Client) -> None:
    running = client.turn(turn(("waits", {})))
    for event in running:
        if isinstance(event, Output):
            break
    run_id, turn_read, watch_read = str(running.run_id), Reading(), Reading()
    native = client._run(client._inner._native())
    watch = client._run(wait(lambda done: native.watch(run_id, 1_000_000, "arrival", done)))
    turn_read.begin(running._inner._native)
    watch_read.begin(watch)
    assert not turn_read.ended.is_set()
    assert not watch_read.ended.is_set()
    del running, watch
    assert turn_read.ended.wait(10)
    assert watch_read.ended.wait(10)
    client.cancel(run_id)


class Reading:
    """Tells when the native part has let go of a callback."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def begin(self, read: Any) -> None:
        def done(value: Any, error: str | None) -> None:
            raise AssertionError("nothing was to be read")

        weakref.finalize(done, self.ended.set)
        read.next(done)


def test_files_and_context_reach_the_tools(client: Client, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"from a path")
    stored = client.upload(b"uploaded before", "text/plain")
    files: dict[str, Any] = {"a.txt": b"from bytes", "b.txt": tmp_path / "b.txt", "c.txt": stored}
    message = turn(*[("read", {"name": name}) for name in files])
    result = client.turn(message, files=files, context={"user": "ada"}).result()
    assert texts(result) == ["ada: from bytes", "ada: from a path", "ada: uploaded before"]
    assert client.download(stored.object_id) == b"uploaded before"


@pytest.mark.parametrize("floor", ["interleaved", "submission"])
def test_a_client_that_is_cut_off_reads_on_without_a_gap_or_a_repetition(proxy: Proxy, floor: Any) -> None:
    message = turn(
        ("say", {"text": "a", "times": 12, "pause": 0.05}), ("say", {"text": "b", "times": 12, "pause": 0.05})
    )
    events, said = [], 0
    running = Client(proxy.url).turn(message, floor=floor)
    for event in running:
        events.append(event)
        if isinstance(event, Output):
            said += 1
            if said in (3, 9):
                proxy.cut()
    assert [event.sequence for event in events] == list(range(len(events)))
    assert texts(running.result()) == ["a" * 12 + "Done", "b" * 12 + "Done"]


def test_the_same_key_finds_the_same_run(client: Client) -> None:
    message = turn(("say", {"text": "once"}))
    first = client.turn(message, key="the-same-key").result()
    again = client.turn(message, key="the-same-key").result()
    assert (again.run_id, again.messages) == (first.run_id, first.messages)
    with pytest.raises(RequestError) as taken:
        client.turn(turn(("say", {"text": "other"})), key="the-same-key").result()
    assert taken.value.reason == "REQUEST_ID_TAKEN"


def test_calls_of_a_client_that_goes_away_are_cancelled_if_it_wants_that(client: Client) -> None:
    running = client.turn(turn(("waits", {})), on_disconnect="cancel")
    for event in running:
        if isinstance(event, Output):
            break
    run_id = running.run_id
    assert run_id is not None
    [ended] = [event for event in client.events(run_id) if isinstance(event, CallEnded)]
    assert ended.state == "cancelled"


def test_an_async_client_does_the_same(yard: Yard) -> None:
    async def work() -> None:
        client = AsyncClient(yard.url)
        message = turn(("delete", {"name": "x"}))
        running = client.turn(message)
        async for event in running:
            if isinstance(event, NeedsApproval):
                await event.approve()
        assert texts(await running) == ["x is deleted"]
        results = await asyncio.gather(*[client.turn(turn(("say", {"text": str(it)}))) for it in range(20)])
        assert [texts(result) for result in results] == [[f"{it}Done"] for it in range(20)]
        waiting = client.turn(turn(("waits", {})), on_disconnect="cancel")
        task = asyncio.ensure_future(waiting.result())
        while waiting.run_id is None:  # noqa: ASYNC110 (there is no event of it)
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ends = [event async for event in client.events(waiting.run_id) if isinstance(event, CallEnded)]
        assert [end.state for end in ends] == ["cancelled"]
        with pytest.raises(RequestError) as unknown:
            await client.run("run_00_01890000000070008000000000000000")
        assert unknown.value.kind == "refused"

    asyncio.run(work())


def test_events_are_not_lost_with_a_reader_and_not_read_twice(yard: Yard) -> None:
    async def work() -> None:
        client = AsyncClient(yard.url)
        message = turn(*[("say", {"text": "a", "times": 20})] * 10)
        running = client.turn(message)
        await running.begin()
        given_up = asyncio.ensure_future(running.fill())
        # Its events are there, and it has not seen them yet.
        while running._inflight is None or not running._inflight.done():  # noqa: ASYNC110 (there is no event of it)
            await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up

        async def read() -> list[Event]:
            return [event async for event in running]

        events = [event for events in await asyncio.gather(read(), read(), read()) for event in events]
        assert sorted(event.sequence for event in events) == list(range(len(events)))
        assert texts(await running) == ["a" * 20 + "Done"] * 10

    asyncio.run(work())


def test_a_result_can_be_waited_for_only_so_long(client: Client) -> None:
    running = client.turn(turn(("waits", {}), ("say", {"text": "quick"})))
    result = running.result(wait_s=0.05)
    while not result.results:
        result = running.result(wait_s=0.05)
    assert (result.complete, [end.call_id for end in result.results]) == (False, ["c1"])
    assert len(result.messages[0]["content"]) == 1
    running.cancel()
    assert running.result().complete


def test_what_cannot_be_reached_or_read_is_told(host: Host) -> None:
    with pytest.raises(RequestError, match="cannot reach the coordinator") as unreachable:
        Client("http://127.0.0.1:1").tools()
    assert unreachable.value.kind == "unreachable"
    with pytest.raises(RequestError, match="is not the address of a coordinator"):
        Client("127.0.0.1:7420").tools()
    with pytest.raises(ValueError, match="the model's message cannot be read"):
        Client("http://127.0.0.1:1").turn({"what": 1}).result()
    with pytest.raises(TypeError, match="no option 'colour'"):
        toolyard.Client("http://127.0.0.1:1").turn(turn(), colour="red").result()  # type: ignore[call-arg]
