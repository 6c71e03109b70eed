"""Turns: what callbacks may return, readers that leave and come back, and turns that are given up early."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Proxy, Worker, Yard, texts, turn

from toolyard import AsyncClient, Client, Ended, Event, NeedsAnswer, NeedsApproval, RequestError
from toolyard._options import TurnOptions
from toolyard.turns import run_options

APP = """
    import asyncio
    from toolyard import App, Context

    app = App("turns")

    @app.tool(name="turns_say", read_only=True)
    def say(text: str) -> str:
        "Says."
        return text

    @app.tool(name="turns_delete", needs_approval=True)
    def delete(name: str) -> str:
        "Deletes."
        return f"{name} is deleted"

    @app.tool(name="turns_choose")
    async def choose(ctx: Context) -> str:
        "Asks."
        return repr(await ctx.ask("Which?", options=["red", "blue"]))

    @app.tool(name="turns_waits")
    async def waits(begun: str = "/dev/null") -> None:
        "Writes that it has begun, and waits."
        with open(begun, "w") as file:
            file.write("begun")
        await asyncio.sleep(600)
"""
DELETE = turn(("turns_delete", {"name": "x"}))


@pytest.fixture(scope="module", autouse=True)
def worker(yard: Yard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("turns")
    (folder / "app.py").write_text(textwrap.dedent(APP))
    running = Worker(folder, yard.nats_url)
    yield running
    running.kill()


async def reject(event: Event) -> str:
    await asyncio.sleep(0)
    return "not that one"


class Rejecting:
    async def __call__(self, event: Event) -> str:
        return await reject(event)


def state(client: Client, run_id: str | None) -> str:
    """The state of the only call of a run."""
    [call] = client.run(run_id or "")["calls"]
    return str(call["state"])


@pytest.mark.parametrize("on_approval", [reject, Rejecting(), partial(reject), lambda event: reject(event)])
def test_an_async_client_awaits_the_decision_of_an_async_callback(yard: Yard, on_approval: Any) -> None:
    async def work() -> None:
        client = AsyncClient(yard.url)
        [awaited] = texts(await client.turn(DELETE, on_approval=on_approval))
        running = client.turn(DELETE, on_approval=on_approval)
        _ = [event async for event in running]
        [iterated] = texts(await running)
        assert "not that one" in awaited
        assert "not that one" in iterated

    asyncio.run(work())


def test_an_async_client_awaits_the_answer_of_an_async_callback(yard: Yard) -> None:
    async def choose(event: NeedsAnswer) -> str:
        await asyncio.sleep(0)
        return "blue"

    async def work() -> None:
        answered = await AsyncClient(yard.url).turn(turn(("turns_choose", {})), on_question=choose)
        assert texts(answered) == ["Accepted(value='blue')"]

    asyncio.run(work())


@pytest.mark.parametrize("name", ["on_approval", "on_question"])
@pytest.mark.parametrize("callback", [reject, Rejecting(), partial(reject)])
def test_a_client_that_cannot_await_refuses_an_async_callback(client: Client, name: str, callback: Any) -> None:
    with pytest.raises(TypeError, match=rf"{name} is an async function .* use AsyncClient"):
        client.turn(DELETE, **{name: callback})


def test_a_client_that_cannot_await_refuses_an_awaitable_answer(client: Client) -> None:
    running = client.turn(DELETE, on_approval=lambda event: reject(event))
    with pytest.raises(TypeError, match=r"on_approval returned an awaitable .* use AsyncClient"):
        running.result()
    assert state(client, running.run_id) == "CALL_STATE_AWAITING_APPROVAL"
    asking = client.turn(turn(("turns_choose", {})), on_question=lambda event: reject(event))
    with pytest.raises(TypeError, match=r"on_question returned an awaitable .* use AsyncClient"):
        asking.result()
    asking.cancel()


@pytest.mark.parametrize("decision", [1, 0, ["yes"], b"no", object()])
def test_a_call_is_not_approved_by_a_value_that_is_merely_true(yard: Yard, client: Client, decision: Any) -> None:
    running = client.turn(DELETE, on_approval=lambda event: decision)
    with pytest.raises(TypeError, match=r"on_approval returned .*: return True or arguments to approve the call"):
        running.result()
    assert state(client, running.run_id) == "CALL_STATE_AWAITING_APPROVAL"

    async def work() -> str | None:
        running = AsyncClient(yard.url).turn(DELETE, on_approval=lambda event: decision)
        with pytest.raises(TypeError, match=r"on_approval returned .*: return True"):
            await running
        return running.run_id

    assert state(client, asyncio.run(work())) == "CALL_STATE_AWAITING_APPROVAL"


def test_true_and_arguments_approve_and_false_and_a_reason_reject(client: Client) -> None:
    def text(decision: Any) -> str:
        return texts(client.turn(DELETE, on_approval=lambda event: decision).result())[0]

    assert text(True) == "x is deleted"
    assert text({"name": "y"}) == "y is deleted"
    assert "rejected" in text(False)
    assert "because" in text("because")


def test_a_callback_may_decide_by_the_event_itself(yard: Yard, client: Client) -> None:
    decided = client.turn(DELETE, on_approval=lambda event: event.reject("not today")).result()
    assert "not today" in texts(decided)[0]

    async def work() -> str:
        return texts(await AsyncClient(yard.url).turn(DELETE, on_approval=lambda event: event.reject("never")))[0]

    assert "never" in asyncio.run(work())


def test_a_reader_that_comes_back_reads_on_without_a_gap(yard: Yard, client: Client) -> None:
    message = turn(*[("turns_say", {"text": "a"})] * 4)
    # The run has ended, so its events come together.
    client.turn(message, key="comes-back").result()
    running, events = client.turn(message, key="comes-back"), list[Event]()
    for wanted in (1, 3):
        for event in running:
            events.append(event)
            if len(events) == wanted:
                break
    events += running
    assert [event.sequence for event in events] == list(range(len(events)))
    assert isinstance(events[-1], Ended)
    assert running.result().complete

    async def work() -> None:
        running, again = AsyncClient(yard.url).turn(message, key="comes-back"), list[Event]()
        async for event in running:
            again.append(event)
            break
        again += [event async for event in running]
        assert again == events

    asyncio.run(work())


def test_a_callback_that_failed_is_called_again(yard: Yard, client: Client) -> None:
    message = turn(("turns_delete", {"name": "x"}), ("turns_delete", {"name": "y"}))

    def failing_once() -> Callable[[NeedsApproval], bool]:
        asked: list[str] = []

        def decide(event: NeedsApproval) -> bool:
            asked.append(event.call_id)
            if len(asked) == 1:
                raise ValueError("the approver is away")
            return True

        return decide

    running = client.turn(message, on_approval=failing_once())
    with pytest.raises(ValueError, match="the approver is away"):
        running.result()
    assert texts(running.result()) == ["x is deleted", "y is deleted"]

    async def work() -> None:
        running = AsyncClient(yard.url).turn(message, on_approval=failing_once())
        with pytest.raises(ValueError, match="the approver is away"):
            _ = [event async for event in running]
        assert texts(await running) == ["x is deleted", "y is deleted"]

    asyncio.run(work())


def test_a_callback_that_was_cancelled_is_called_again(yard: Yard) -> None:
    async def work() -> None:
        asked = asyncio.Event()

        async def decide(event: NeedsApproval) -> bool:
            if not asked.is_set():
                asked.set()
                await asyncio.Event().wait()
            return True

        running = AsyncClient(yard.url).turn(DELETE, on_approval=decide)
        given_up = asyncio.ensure_future(running.result())
        await asked.wait()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert texts(await running) == ["x is deleted"]

    asyncio.run(work())


def test_a_callback_is_called_once_although_several_readers_wait(yard: Yard) -> None:
    async def work() -> None:
        asked: list[str] = []

        async def decide(event: NeedsApproval) -> bool:
            asked.append(event.call_id)
            for _ in range(10):
                await asyncio.sleep(0)
            return True

        running = AsyncClient(yard.url).turn(DELETE, on_approval=decide)

        async def read() -> list[Event]:
            return [event async for event in running]

        events = [event for events in await asyncio.gather(read(), read(), read()) for event in events]
        assert sorted(event.sequence for event in events) == list(range(len(events)))
        assert asked == ["c0"]

    asyncio.run(work())


def test_a_decision_that_comes_too_late_does_not_block_the_turn(client: Client) -> None:
    def decide(event: NeedsApproval) -> bool:
        running.cancel("enough")
        return True

    running = client.turn(DELETE, on_approval=decide)
    with pytest.raises(RequestError) as late:
        running.result()
    assert late.value.reason in ("CALL_NOT_AWAITING_APPROVAL", "RUN_ENDED")
    assert [end.state for end in running.result().results] == ["cancelled"]


def test_a_turn_is_cancelled_before_its_first_event_was_read(yard: Yard, client: Client) -> None:
    message = turn(("turns_waits", {}))
    running = client.turn(message)
    assert running.result(wait_s=0).messages == []
    assert running.run_id is None
    running.cancel("enough")
    assert [end.state for end in running.result(wait_s=20).results] == ["cancelled"]

    async def work() -> None:
        running = AsyncClient(yard.url).turn(message)
        await running.begin()
        await running.cancel("enough")
        assert [end.state for end in (await running.result(wait_s=20)).results] == ["cancelled"]

    asyncio.run(work())


def test_a_turn_that_has_not_begun_has_nothing_to_cancel(client: Client) -> None:
    running = client.turn(turn(("turns_say", {"text": "said"})))
    running.cancel()
    assert running.run_id is None
    assert texts(running.result()) == ["said"]


def test_giving_up_before_anything_came_back_cancels_the_run_all_the_same(
    yard: Yard, proxy: Proxy, client: Client, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    message = turn(("turns_waits", {"begun": str(begun)}))

    async def work() -> None:
        distant = AsyncClient(proxy.url)
        await distant.tools()
        proxy.hold()
        running = distant.turn(message, key="given-up", on_disconnect="cancel")
        waiting = asyncio.ensure_future(running.result())
        await asyncio.to_thread(begun.read_text)
        # The coordinator has the run, and nothing of its answer has arrived.
        assert running.run_id is None
        waiting.cancel()
        proxy.release()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(work())
    assert [end.state for end in client.turn(message, key="given-up").result(wait_s=20).results] == ["cancelled"]


def test_a_timeout_of_a_callback_is_not_taken_for_that_of_the_wait(yard: Yard, client: Client) -> None:
    def decide(event: NeedsApproval) -> bool:
        raise TimeoutError("the approver did not answer")

    async def decide_async(event: NeedsApproval) -> bool:
        raise asyncio.TimeoutError("the approver did not answer")

    with pytest.raises(TimeoutError, match="the approver did not answer"):
        client.turn(DELETE, on_approval=decide).result(wait_s=60)

    async def work(callback: Callable[[NeedsApproval], bool | Awaitable[bool]]) -> None:
        await AsyncClient(yard.url).turn(DELETE, on_approval=callback).result(wait_s=60)

    with pytest.raises(TimeoutError, match="the approver did not answer"):
        asyncio.run(work(decide))
    with pytest.raises(asyncio.TimeoutError, match="the approver did not answer"):
        asyncio.run(work(decide_async))


def test_a_turn_has_a_priority_beside_its_other_rules() -> None:
    options: TurnOptions = {"priority": "high", "confirmation": "none", "extra": {"rules": {"calls_max": 3}}}
    rules = json.loads(run_options(options, []))["rules"]
    assert rules == {"calls_max": 3, "confirmation": "CONFIRMATION_NONE", "priority": "PRIORITY_HIGH"}
