"""Tools without a broker: what functions are given, and what becomes of what they return, yield and raise."""

from __future__ import annotations

import asyncio
import datetime
import enum
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
import pytest

from toolyard import (
    Accepted,
    App,
    BadInput,
    Cancelled,
    Context,
    Data,
    Decline,
    Given,
    Image,
    Json,
    ModelRetry,
    NeedsInput,
    Progress,
    RateLimited,
    Result,
    Retry,
    Text,
    ToolError,
    Use,
)
from toolyard.testing import Called, CallError


def tools(*functions: Any, **options: Any) -> App:
    app = App()
    for function in functions:
        app.tool(**options)(function)
    return app


@dataclass
class Point:
    x: int
    day: datetime.date


class Colour(str, enum.Enum):
    RED = "red"


class OwnKind(ToolError):
    kind = "billing"


class Unfinished(ToolError):
    def __init__(self) -> None:
        pass  # not that of its base


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Leaves(Exception):
    """Its text ends the thread that asks for it."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Textless(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


def error(called: Called) -> CallError:
    assert called.error is not None
    return called.error


def test_arguments_are_of_the_types_of_the_parameters() -> None:
    seen: list[Any] = []

    def take(point: Point, at: datetime.datetime, names: set[str]) -> None:
        """Take."""
        seen.extend([point, at, names])

    arguments = {"point": {"x": 1, "day": "2026-01-02"}, "at": "2026-01-02T03:04:05Z", "names": ["a"]}
    assert tools(take).test_client().call("take", **arguments).value == "Done"
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    assert seen == [Point(1, datetime.date(2026, 1, 2)), at, {"a"}]


def test_arguments_that_do_not_fit_are_told_to_the_model_and_the_function_is_not_called() -> None:
    def never(count: int, at: datetime.datetime) -> None:
        """Never called."""
        raise AssertionError

    client = tools(never).test_client()
    wrong = error(client.call("never", count="three", at="2026-01-02T03:04:05Z"))
    assert (wrong.kind, wrong.violations) == ("ARGUMENTS_INVALID", [("/count", '"three" is not of type integer')])
    # What a JSON Schema does not say is found by the types.
    late = error(client.call("never", count=3, at="2026-13-01T00:00:00Z"))
    assert late.kind == "ARGUMENTS_INVALID"
    assert late.violations[0][0] == "/at"
    assert error(client.call("never", count=3, at="x", more=1)).kind == "ARGUMENTS_INVALID"


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, [Text("Done")]),
        ("text", [Text("text")]),
        ({"a": 1}, [Json({"a": 1})]),
        ([1, "b"], [Json([1, "b"])]),
        (7, [Json(7)]),
        (Point(1, datetime.date(2026, 1, 2)), [Json({"x": 1, "day": "2026-01-02"})]),
        (b"\x00", [Data(b"\x00")]),
        (Image(b"png"), [Data(b"png", "image/png")]),
        ([Text("see"), Image(b"jpg", "image/jpeg")], [Text("see"), Data(b"jpg", "image/jpeg")]),
        (Json("text"), [Json("text")]),
        (Colour.RED, [Text("red")]),
        ([Colour.RED], [Json(["red"])]),
        ([1.5, float("nan"), float("inf")], [Json([1.5, None, None])]),
    ],
)
def test_values_become_content(value: Any, content: list[Any]) -> None:
    def give() -> Any:
        """Give."""
        return value

    assert tools(give).test_client().call("give").result == content


def test_a_value_that_is_not_json_fails_the_call() -> None:
    def give() -> object:
        """Give."""
        return object()

    assert "the result of give cannot be converted" in error(tools(give).test_client().call("give")).message


def test_what_is_not_json_never_becomes_a_result(monkeypatch: Any) -> None:
    def give() -> None:
        """Give."""

    monkeypatch.setattr("toolyard._execute.to_parts", lambda value: ([("json", "NaN")], []))
    assert "it is not JSON" in error(tools(give).test_client().call("give")).message


def test_a_result_whose_conversion_fails_oddly_fails_the_call(monkeypatch: Any) -> None:
    def give() -> None:
        """Give."""

    client = tools(give).test_client()
    for odd in (Odd, Leaves, SystemExit):

        def refuse(value: Any, odd: Any = odd) -> Any:
            raise odd

        monkeypatch.setattr("toolyard._execute.to_parts", refuse)
        assert error(client.call("give")).message.endswith(f"cannot be converted: {odd.__name__}")


def test_what_is_not_json_fails_the_call_where_it_is_yielded_or_given_as_state() -> None:
    loop: list[Any] = []
    loop.append(loop)

    async def yields() -> AsyncIterator[Any]:
        """Yield."""
        yield "before"
        yield object()

    def blocks() -> Iterator[Any]:
        """Yield."""
        yield "before"
        yield {"circle": loop}

    async def remembers() -> Result:
        """Remember."""
        return Result("fine", {"state": object()})

    def surrogates() -> str:
        """Return a text that is not Unicode, as the name of a file may be."""
        return "caf\udce9"

    client = tools(yields, blocks, remembers, surrogates).test_client()
    for name in ("yields", "blocks"):
        called = client.call(name)
        assert (called.text, error(called).kind) == ("before", "TOOL_FAILED")
    assert "a value of the type object is not JSON" in error(client.call("yields")).message
    assert "Circular reference" in error(client.call("blocks")).message
    assert "the result of remembers cannot be converted" in error(client.call("remembers")).message
    assert "the result of surrogates cannot be converted" in error(client.call("surrogates")).message


def test_state_is_for_the_caller_and_not_for_the_model() -> None:
    async def buy() -> Result:
        """Buy."""
        return Result("It is in the cart.", {"cart": ["tea"]})

    called = tools(buy).test_client().call("buy")
    assert (called.value, called.state) == ("It is in the cart.", {"cart": ["tea"]})


@pytest.mark.parametrize(
    ("raised", "kind", "message", "retryable"),
    [
        (ToolError("no"), "TOOL_FAILED", "no", False),
        (Retry("later"), "TOOL_FAILED", "later", True),
        (RateLimited("slow down", after=3), "RATE_LIMITED", "slow down", True),
        (ModelRetry("use a city"), "MODEL_RETRY", "use a city", False),
        (NeedsInput("a login"), "NEEDS_INPUT", "a login", False),
        (BadInput("/a/0", "too old"), "ARGUMENTS_INVALID", "at /a/0: too old", False),
        (ValueError("boom"), "TOOL_FAILED", "ValueError: boom", False),
        (Odd(), "TOOL_FAILED", "Odd", False),
        (Leaves(), "TOOL_FAILED", "Leaves", False),
        (Textless(), "TOOL_FAILED", "Textless", False),
        (SystemExit(3), "TOOL_FAILED", "SystemExit: 3", False),
        (ValueError("no name: caf\udce9"), "TOOL_FAILED", "ValueError: no name: caf?", False),
        (BadInput("/name", "caf\udce9"), "ARGUMENTS_INVALID", "at /name: caf?", False),
        (OwnKind("not paid"), "TOOL_FAILED", "not paid", False),
        (Unfinished(), "TOOL_FAILED", "", False),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_exceptions_become_errors(
    raised: BaseException, kind: str, message: str, retryable: bool, is_async: bool
) -> None:
    async def fails_async() -> None:
        """Fail."""
        raise raised

    def fails() -> None:
        """Fail."""
        raise raised

    function = fails_async if is_async else fails
    client = tools(function).test_client()
    failed = error(client.call(function.__name__))
    assert (failed.kind, failed.retryable) == (kind, retryable)
    assert message in failed.message
    if isinstance(raised, RateLimited):
        assert failed.retry_after == 3
    assert error(client.call(function.__name__)).kind == kind, "the next call is executed as well"


def test_generators_stream_what_they_yield() -> None:
    async def stream(count: int, ctx: Context) -> AsyncIterator[Any]:
        """Stream."""
        for index in range(count):
            yield f"{index}\n"
        yield Progress(1, 2, "half")
        yield Text("oops", channel="stderr")
        yield {"a": 1}
        await ctx.progress(2, 2)

    def block(count: int) -> Generator[str, None, str]:
        """Stream."""
        yield from (f"{index}\n" for index in range(count))
        return "the end"

    client = tools(stream, block).test_client()
    called = client.call("stream", count=2)
    tail = [Progress(1, 2, "half"), Text("oops", "stderr"), Json({"a": 1}), Progress(2, 2)]
    assert called.output == [Text("0\n"), Text("1\n"), *tail]
    assert called.value == "Done"
    called = client.call("block", count=2)
    assert (called.text, called.value) == ("0\n1\n", "the end")


def test_a_stream_is_faster_than_its_reader_and_loses_nothing() -> None:
    async def many(count: int) -> AsyncIterator[str]:
        """Many."""
        for index in range(count):
            yield f"{index},"

    def many_blocking(count: int) -> Iterator[str]:
        """Many."""
        yield from (f"{index}," for index in range(count))

    client = tools(many, many_blocking).test_client()
    for name in ("many", "many_blocking"):
        assert client.call(name, count=5_000).text == "".join(f"{index}," for index in range(5_000))


def test_output_is_seen_while_the_function_runs() -> None:
    gate = threading.Event()

    def talk() -> Iterator[str]:
        """Talk."""
        yield "one"
        gate.wait()
        yield "two"

    running = tools(talk).test_client().start("talk")
    pieces = iter(running)
    assert next(pieces) == Text("one")
    gate.set()
    assert running.end().text == "two"


def test_methods_partial_applications_and_decorated_functions_are_tools() -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        async def buy(self, what: str) -> str:
            """Buy."""
            return f"{what} at {self.name}"

        def __call__(self, what: str) -> str:
            """Sell."""
            return f"{what} from {self.name}"

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @logged
    async def later(what: str) -> str:
        """Later."""
        await asyncio.sleep(0)
        return what

    @logged
    async def pieces(what: str) -> AsyncIterator[str]:
        """Pieces."""
        yield what

    def pay(what: str, amount: int) -> str:
        """Pay."""
        return f"{amount} for {what}"

    app, shop = App(), Shop("Ada's")
    app.tool(shop.buy)
    app.tool(name="sell")(shop)
    app.tool(name="pay")(functools.partial(pay, amount=3))
    app.tool(later)
    app.tool(pieces)
    client = app.test_client()
    values = [client.call(name, what="tea").value for name in ("buy", "sell", "pay", "later")]
    assert values == ["tea at Ada's", "tea from Ada's", "3 for tea", "tea"]
    assert client.call("pieces", what="tea").text == "tea"


def test_a_generator_that_never_yields_is_done() -> None:
    async def nothing() -> AsyncIterator[str]:
        """Nothing."""
        if False:
            yield ""

    def nothing_blocking() -> Iterator[str]:
        """Nothing."""
        yield from ()

    def only_returns() -> Generator[str, None, int]:
        """Return."""
        yield from ()
        return 7

    client = tools(nothing, nothing_blocking, only_returns).test_client()
    called = [client.call(name) for name in ("nothing", "nothing_blocking", "only_returns")]
    assert [(call.output, call.value) for call in called] == [([], "Done"), ([], "Done"), ([], 7)]


def test_the_context_tells_of_the_call() -> None:
    async def tell(ctx: Context) -> dict[str, Any]:
        """Tell."""
        ctx.log.info("hello")
        names = ["run", "call", "tool", "attempt", "tenant", "caller", "cancelled", "idempotency_key", "continue_from"]
        return {name: getattr(ctx, name) for name in names} | {"left": ctx.seconds_left, "wait": ctx.deadline}

    told = tools(tell, timeout=30).test_client(tenant="acme", caller="ada").call("tell").value
    assert told["idempotency_key"] == f"{told['run']}/{told['call']}"
    assert (told["tool"], told["attempt"], told["tenant"], told["caller"]) == ("tell", 1, "acme", "ada")
    assert 25 < told["left"] <= 30
    assert told["wait"] > time.monotonic()


def test_files_and_given_values_reach_the_function() -> None:
    async def read(ctx: Context, user: Annotated[str, Given()], page: Annotated[int, Given("page_no")] = 1) -> str:
        """Read."""
        data = await ctx.read(ctx.files[0].name)
        return f"{user} {page} {data.decode()}"

    app = tools(read)
    client = app.test_client(context={"user": "ada", "page_no": 3, "other": 1}, files={"a.txt": b"hello"})
    assert client.call("read").value == "ada 3 hello"
    missing = error(app.test_client(files={"a.txt": b"hello"}).call("read"))
    assert (missing.kind, missing.message) == (
        "NEEDS_INPUT",
        "read needs 'user' in the context of its call, and nothing was given",
    )
    no_file = error(app.test_client(context={"user": "ada"}).call("read"))
    assert "IndexError" in no_file.message


class Address(pydantic.BaseModel):
    street: str
    number: int


def test_a_function_asks_its_client() -> None:
    async def ask(ctx: Context) -> str:
        """Ask."""
        choice = await ctx.ask("Which?", options=["red", "blue"])
        address = await ctx.ask("Where?", type=Address)
        assert isinstance(choice, Accepted)
        assert isinstance(address, Accepted)
        return f"{choice.value} {address.value.street}"

    def ask_blocking(ctx: Context) -> str:
        """Ask."""
        return repr(ctx.ask("Which?", options=["red", "blue"]).result())

    def answer(question: str, schema: Any) -> Any:
        return "blue" if question == "Which?" else {"street": "Main", "number": 1}

    app = tools(ask, ask_blocking)
    client = app.test_client(answer=answer)
    assert client.call("ask").value == "blue Main"
    assert client.call("ask_blocking").value == "Accepted(value='blue')"
    assert app.test_client(answer=lambda *_: Decline()).call("ask_blocking").value == "Decline()"
    assert error(app.test_client(answer=lambda *_: "green").call("ask_blocking")).kind == "TOOL_FAILED"


def test_cancellation_reaches_every_kind_of_function() -> None:
    seen: list[str] = []
    gone = threading.Semaphore(0)

    async def waits(ctx: Context) -> None:
        """Wait."""
        await ctx.send("begun")
        try:
            await asyncio.sleep(600)
        finally:
            seen.append("waits")
            gone.release()

    async def streams() -> AsyncIterator[str]:
        """Stream."""
        try:
            yield "begun"
            await asyncio.sleep(600)
        finally:
            seen.append("streams")
            gone.release()

    def polls(ctx: Context) -> None:
        """Poll."""
        ctx.send("begun")
        try:
            while True:
                ctx.check()
                time.sleep(0.001)
        except Cancelled:
            seen.append("polls")
            gone.release()
            raise

    def yields() -> Iterator[str]:
        """Yield."""
        try:
            while True:
                yield "begun"
        finally:
            seen.append("yields")
            gone.release()

    client = tools(waits, streams, polls, yields).test_client()
    for name in ("waits", "streams", "polls", "yields"):
        running = client.start(name)
        assert next(iter(running)) == Text("begun")
        running.cancel()
        assert error(running.end()).message == "the call was stopped"
        assert gone.acquire(timeout=10)
    assert seen == ["waits", "streams", "polls", "yields"]


def test_a_function_that_swallows_its_cancellation_is_reported(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("toolyard._execute._STUBBORN_S", 0.01)
    go_on = threading.Event()

    async def stubborn(ctx: Context) -> str:
        """Stay."""
        await ctx.send("begun")
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue
        return "late"

    running = tools(stubborn).test_client().start("stubborn")
    next(iter(running))
    running.cancel()
    while "was cancelled" not in caplog.text:
        time.sleep(0.005)
    go_on.set()
    assert running.end().value == "late"


def test_a_blocked_event_loop_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr("toolyard._execute._BLOCKED_S", 0.05)

    async def blocks() -> None:
        """Block."""
        until = time.monotonic() + 20
        while "the event loop of tools is blocked" not in caplog.text and time.monotonic() < until:
            time.sleep(0.005)  # noqa: ASYNC251 (it is what is reported)

    with caplog.at_level(logging.WARNING), tools(blocks).test_client() as client:
        assert client.call("blocks").value == "Done"
    assert "in blocks" in caplog.text


def test_a_blocked_event_loop_does_not_keep_an_app_from_closing(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("toolyard._execute._CLOSE_S", 0.1)
    monkeypatch.setattr("toolyard._execute._CLEAN_UP_S", 0.1)
    go_on = threading.Event()

    async def blocks(ctx: Context) -> str:
        """Block."""
        await ctx.send("begun")
        go_on.wait(60)  # what is tested
        return "late"

    client = tools(blocks).test_client()
    running = client.start("blocks")
    next(iter(running))
    client.close()
    assert "left as they are" in caplog.text
    assert "in blocks" in caplog.text
    go_on.set()
    assert running.end().value == "late"


def test_calls_of_a_closed_app_fail() -> None:
    async def late() -> None:
        """Be late."""

    client = tools(late).test_client()
    client.close()
    assert error(client.call("late")).message == "the app of this tool is closed"


def test_a_function_is_cancelled_although_it_did_not_begin() -> None:
    at_gate, gate = threading.Event(), threading.Event()

    async def blocks() -> None:
        """Hold the event loop."""
        at_gate.set()
        gate.wait(60)

    async def waits(number: int) -> int:
        """Wait, unless it is an even number."""
        await asyncio.sleep(600 * (number % 2))
        return number

    client = tools(blocks, waits).test_client()
    first = client.start("blocks")
    assert at_gate.wait(60)
    others = [client.start("waits", number=number) for number in range(3)]
    others[1].cancel()
    gate.set()
    assert first.end().value == "Done"
    assert [running.end().error is None for running in others] == [True, False, True]
    client.close()
    assert client._runner.running == {}


def test_resources_are_made_once_and_closed_in_reverse() -> None:
    app, seen = App(), list[str]()

    @app.resource
    async def pool() -> AsyncIterator[str]:
        seen.append("pool")
        yield "connections"
        seen.append("pool closed")

    @app.resource
    def cache() -> Iterator[dict[str, str]]:
        seen.append("cache")
        yield {}
        seen.append("cache closed")

    @app.tool
    async def look(key: str, db: Annotated[str, Use(pool)], kept: Annotated[dict[str, str], Use(cache)]) -> int:
        """Look."""
        kept[key] = db
        return len(kept)

    with app.test_client() as client:
        assert [client.call("look", key=key).value for key in ("a", "b")] == [1, 2]
    assert seen == ["pool", "cache", "cache closed", "pool closed"]


def test_functions_clean_up_before_the_resources_that_they_use_are_closed() -> None:
    app, seen = App(), list[str]()

    @app.resource
    async def database() -> AsyncIterator[str]:
        yield "rows"
        seen.append("database closed")

    @app.tool
    async def waits(db: Annotated[str, Use(database)], ctx: Context) -> None:
        """Wait."""
        await ctx.send("begun")
        try:
            await asyncio.sleep(600)
        finally:
            seen.append(f"gave {db} back")

    client = app.test_client()
    running = client.start("waits")
    assert next(iter(running)) == Text("begun")
    client.close()
    assert seen == ["gave rows back", "database closed"]
    assert error(running.end()).message == "the call was stopped"


process_app = App()


@process_app.tool(process=True)
def busy(count: int) -> Generator[str, None, str]:
    """Be busy."""
    yield "begun"
    if count == -2:
        raise OwnKind("caf\udce9")
    if count < 0:
        raise BadInput("/count", "negative")
    if count == 99:
        import os

        os._exit(7)
    while count > 10:
        pass
    return f"counted {count}"


def test_a_function_in_a_process_is_killed_if_its_call_is_cancelled() -> None:
    with process_app.test_client() as client:
        called = client.call("busy", count=3)
        assert (called.text, called.value) == ("begun", "counted 3")
        assert error(client.call("busy", count=-1)).violations == [("/count", "negative")]
        assert error(client.call("busy", count=-2)).message == "caf?"
        assert "died: exit code 7" in error(client.call("busy", count=99)).message
        running = client.start("busy", count=11)
        assert next(iter(running)) == Text("begun")
        running.cancel()
        assert error(running.end()).message == "the call was stopped"


async def _both(app: App) -> list[Any]:
    with app.test_client() as client:
        return [called.value for called in await asyncio.gather(client.acall("slow"), client.acall("slow"))]


def test_calls_of_async_functions_run_at_the_same_time() -> None:
    both = threading.Barrier(2)

    async def slow() -> int:
        """Meet the other one."""
        return await asyncio.to_thread(both.wait, 10)

    assert sorted(asyncio.run(_both(tools(slow)))) == [0, 1]
