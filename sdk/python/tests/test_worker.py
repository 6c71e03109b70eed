"""A worker of Python functions as a process of its own, called over every API, killed, drained and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Host, Yard, texts, turn

import toolyard
from toolyard import CallEnded, Other, Output, Withdrawn
from toolyard.worker import Settings

APP = """
    import asyncio, ctypes, os, pathlib, time
    from toolyard import App, Context, Retry

    app = App("{pool}")
    here = pathlib.Path(__file__).parent

    @app.tool(name="{pool}_count", read_only=True)
    async def count(to: int, pause: float = 0.0):
        "Counts."
        for number in range(1, to + 1):
            yield f"{{number}}\\n"
            await asyncio.sleep(pause)

    @app.tool(name="{pool}_gated", read_only=True)
    async def gated():
        "Says one, and two when it may."
        yield "one\\n"
        while not (here / "gate").exists():
            await asyncio.sleep(0.005)
        yield "two\\n"

    @app.tool(name="{pool}_apart", process=True)
    def apart():
        "Says its process, and two when it may."
        yield str(os.getpid())
        while not (here / "gate").exists():
            time.sleep(0.005)
        yield " two"

    @app.tool(name="{pool}_waits")
    async def waits(ctx: Context) -> None:
        "Waits."
        await ctx.send("begun")
        try:
            await asyncio.sleep(600)
        finally:
            (here / "stopped").write_text(ctx.run)

    @app.tool(name="{pool}_flaky", read_only=True, backoff=(0.01, 0.01))
    async def flaky(ctx: Context) -> str:
        "Fails at first."
        if ctx.attempt == 1:
            await ctx.send("half of it")
            raise Retry("the service is away")
        return f"attempt {{ctx.attempt}} of {{ctx.idempotency_key}}"

    @app.tool(name="{pool}_sleeps")
    def sleeps() -> None:
        "Sleeps."
        yield "begun"
        time.sleep(600)

    @app.tool(name="{pool}_stubborn", concurrency=1)
    async def stubborn(ctx: Context) -> str:
        "Swallows its cancellation until it may end."
        await ctx.send("begun")
        while not (here / "gate").exists():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue
        return "late"

    @app.tool(name="{pool}_blocks", read_only=True)
    async def blocks(seconds: int, holds_lock: bool):
        "Blocks the event loop, and holds the interpreter's lock if it is to, as native code may."
        yield "begun"
        ctypes.PyDLL(None).sleep(seconds) if holds_lock else time.sleep(seconds)

    together, all_here = 0, asyncio.Event()

    @app.tool(name="{pool}_meet", read_only=True)
    async def meet(count: int) -> str:
        "Waits for the others."
        global together
        together += 1
        if together == count:
            all_here.set()
        await all_here.wait()
        return "met"

    @app.tool(name="{pool}_add", read_only=True)
    def add(a: int, b: int = 1) -> int:
        "Adds."
        return a + b
"""


def test_a_function_is_called_over_the_cli_and_http_and_grpc(host: Host, yard: Yard, client: toolyard.Client) -> None:
    host(APP.format(pool="apis"))
    assert yard.run("call", "apis_add", "a=41").splitlines()[-1].endswith("42")
    assert "1\n2\n3\n" in yard.run("call", "apis_count", "to=3")
    body = json.dumps(turn(("apis_add", {"a": 1, "b": 2}))).encode()
    request = urllib.request.Request(
        f"{yard.url}/v1/tool_calls:batch?wait=60s", body, {"content-type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request))
    assert answer["messages"][0]["content"][0]["content"] == [{"type": "text", "text": "3"}]
    assert client.call("apis_add", a=2, b=3).value == 5
    invalid = client.call("apis_add", a="two")
    assert (invalid.state, invalid.error_kind) == ("failed", "ARGUMENTS_INVALID")


def test_output_arrives_piece_by_piece(host: Host, yard: Yard, tmp_path: Path) -> None:
    host(APP.format(pool="pieces"))
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    body = json.dumps(turn(("pieces_gated", {}))).encode()
    request = urllib.request.Request(f"{yard.url}/v1/tool_calls:batch", body, headers)
    said = []
    with urllib.request.urlopen(request) as stream:
        for line in stream:
            if b"call_output" in line:
                event = json.loads(line.removeprefix(b"data: "))
                said.append(event["call_output"]["content"]["text"])
                # The second piece is made only now, so the first one did not wait for it.
                (tmp_path / "gate").touch()
    assert said == ["one\n", "two\n"]


def test_a_worker_that_is_killed_in_mid_stream_leaves_no_doubled_output(host: Host, client: toolyard.Client) -> None:
    first = host(APP.format(pool="killed"))
    workers, said, withdrawn = set(), [], 0
    running = client.turn(turn(("killed_count", {"to": 40, "pause": 0.05})), timeout=120)
    for event in running:
        if isinstance(event, Output):
            said.append(event.text)
            if len(said) == 5 and not withdrawn:
                first.kill()
                host()
        elif isinstance(event, Withdrawn):
            said.clear()
            withdrawn += 1
        elif isinstance(event, Other) and event.name == "attempt_started":
            workers.add(event.fields["worker_id"])
    whole = "".join(f"{number}\n" for number in range(1, 41))
    assert ("".join(said), withdrawn, len(workers)) == (whole, 1, 2)
    assert texts(running.result()) == [whole + "Done"]


def test_a_call_that_may_be_retried_is_executed_again_without_its_first_output(
    host: Host, client: toolyard.Client
) -> None:
    host(APP.format(pool="retried"))
    running = client.turn(turn(("retried_flaky", {})))
    assert [event.attempt for event in running if isinstance(event, Withdrawn)] == [1]
    assert texts(running.result()) == [f"attempt 2 of {running.run_id}/c0"]


def test_a_thousand_calls_run_at_once_in_one_process(host: Host, yard: Yard) -> None:
    host(APP.format(pool="many"), "--slots", "1000")

    async def all_calls() -> list[toolyard.TurnResult]:
        client = toolyard.AsyncClient(yard.url)
        message = turn(*[("many_meet", {"count": 1000})] * 125)
        return await asyncio.gather(*[client.turn(message).result() for _ in range(8)])

    results = asyncio.run(all_calls())
    assert [text for result in results for text in texts(result)] == ["met"] * 1000


# Longer than a worker may be silent.
BLOCKED_S = 10


@pytest.mark.parametrize("holds_lock", [False, True])
def test_a_function_that_blocks_keeps_its_call_and_those_beside_it(
    host: Host, client: toolyard.Client, holds_lock: bool
) -> None:
    pool = f"blocked{int(holds_lock)}"
    worker = host(APP.format(pool=pool), "--slots", "32")
    names, said, beside = [], [], []
    running = client.turn(turn((f"{pool}_blocks", {"seconds": BLOCKED_S, "holds_lock": holds_lock})))
    with ThreadPoolExecutor(16) as threads:
        for event in running:
            if isinstance(event, Output):
                said.append(event.text)
                beside = [threads.submit(client.call, f"{pool}_add", a=a) for a in range(16)]
            elif isinstance(event, Other):
                names.append(event.name)
    assert said == ["begun"]
    assert names.count("attempt_started") == 1
    assert [call.result().value for call in beside] == list(range(1, 17))
    if not holds_lock:
        log = worker.log.read_text()
        assert "the event loop of tools is blocked" in log
        assert "in blocks" in log


def test_cancellation_reaches_the_function_before_the_call_ends(
    host: Host, client: toolyard.Client, tmp_path: Path
) -> None:
    host(APP.format(pool="cancelled"))
    names = []
    running = client.turn(turn(("cancelled_waits", {})))
    for event in running:
        if isinstance(event, Output):
            running.cancel("enough")
        elif isinstance(event, CallEnded):
            assert event.state == "cancelled"
            assert (tmp_path / "stopped").read_text() == running.run_id
        elif isinstance(event, Other):
            names.append(event.name)
    cancel = ["cancel_requested", "cancel_delivered", "cancel_acknowledged"]
    assert [name for name in names if name.startswith("cancel_")] == cancel


def test_a_function_that_swallows_its_cancellation_keeps_its_call_until_it_ends(
    host: Host, client: toolyard.Client, tmp_path: Path
) -> None:
    worker = host(APP.format(pool="stubborn"))
    running = client.turn(turn(("stubborn_stubborn", {})))
    for event in running:
        if isinstance(event, Output):
            running.cancel("enough")
            while "tool stubborn_stubborn was cancelled" not in worker.log.read_text():
                pass
            [call] = client.run(running.run_id or "")["calls"]
            assert call["state"] == "CALL_STATE_RUNNING"
            (tmp_path / "gate").touch()
    [end] = running.result().results
    assert end.state == "cancelled"
    [call] = client.run(running.run_id or "")["calls"]
    assert call["outcome"]["stopped"] == "STOPPED_CONFIRMED"


def test_a_worker_that_is_told_to_stop_lets_its_calls_end(host: Host, client: toolyard.Client, tmp_path: Path) -> None:
    worker = host(APP.format(pool="drained"))
    running = client.turn(turn(("drained_gated", {})))
    for event in running:
        if isinstance(event, Output) and event.text == "one\n":
            worker.process.terminate()
            while "stopping" not in worker.log.read_text():
                pass
            (tmp_path / "gate").touch()
    assert texts(running.result()) == ["one\ntwo\nDone"]
    assert worker.process.wait(60) == 0


def test_a_stop_of_all_processes_lets_functions_in_processes_end(
    host: Host, client: toolyard.Client, tmp_path: Path
) -> None:
    worker = host(APP.format(pool="apart"))
    running, said = client.turn(turn(("apart_apart", {}))), list[str]()
    for event in running:
        if isinstance(event, Output):
            said.append(event.text)
            if len(said) == 1:
                os.killpg(worker.process.pid, signal.SIGTERM)
                os.kill(int(said[0]), signal.SIGTERM)
                while "stopping" not in worker.log.read_text():
                    pass
                (tmp_path / "gate").touch()
    assert texts(running.result()) == [f"{said[0]} twoDone"]
    assert worker.process.wait(60) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(said[0]), 0)


def test_a_process_that_executes_a_function_ends_with_its_worker(host: Host, client: toolyard.Client) -> None:
    worker = host(APP.format(pool="ended"), "--drain", "0.1")
    said = ""
    for event in client.turn(turn(("ended_apart", {})), timeout=60):
        if isinstance(event, Output):
            said = event.text
            break
    assert worker.stop() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(said), 0)


def test_settings_come_from_the_variables_of_the_worker(
    host: Host, client: toolyard.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"POOL": "of_a_chart", "SLOTS": "3", "DRAIN": "7.5", "OBJECTS_ALLOW_HTTP": "false"}.items():
        monkeypatch.setenv(f"TOOLYARD_{name}", value)
    settings = Settings()
    assert (settings.pool, settings.slots, settings.drain_s) == ("of_a_chart", 3, 7.5)
    assert not settings.objects_allow_http
    assert Settings(pool="own", slots=4, drain_s=1).pool == "own"
    monkeypatch.setenv("TOOLYARD_OBJECTS_ALLOW_HTTP", "True")
    assert Settings().objects_allow_http
    worker = host(APP.format(pool="of_the_app"), "--slots", "2")
    assert worker.ready["pool"] == "of_a_chart"
    assert client.call("of_the_app_add", a=1).value == 2
    assert worker.stop() == 0
    monkeypatch.setenv("TOOLYARD_SLOTS", "many")
    with pytest.raises(ValueError, match="TOOLYARD_SLOTS is 'many': use a number"):
        Settings()


def test_a_function_that_never_returns_does_not_keep_a_worker_from_ending(host: Host, client: toolyard.Client) -> None:
    worker = host(APP.format(pool="stuck"), "--drain", "0.1")
    running = client.turn(turn(("stuck_sleeps", {})), timeout=60)
    for event in running:
        if isinstance(event, Output):
            break
    assert worker.stop() == 0
    result = running.result()
    assert [(end.state, end.error_kind) for end in result.results] == [("failed", "INTERRUPTED")]


def test_the_admin_port_tells_of_the_worker(host: Host, client: toolyard.Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    host(APP.format(pool="watched"), "--admin-listen", address)
    assert client.call("watched_add", a=1).value == 2
    with urllib.request.urlopen(f"http://{address}/metrics") as metrics:
        assert 'tool="watched_add"' in metrics.read().decode()


def test_a_change_of_the_source_starts_the_worker_again(host: Host, client: toolyard.Client, tmp_path: Path) -> None:
    source = APP.format(pool="reloaded")
    worker = host(source, "--reload")
    assert client.call("reloaded_add", a=1).value == 2
    changed = (tmp_path / "app.py").read_text().replace("return a + b", "return a - b")
    (tmp_path / "app.py").write_text(changed)
    assert worker.process.stdout is not None
    assert json.loads(worker.process.stdout.readline())["pool"] == "reloaded"
    assert client.call("reloaded_add", a=1).value == 0
    assert worker.stop() == 0


def test_what_cannot_be_run_is_told_with_what_to_do(yard: Yard, tmp_path: Path) -> None:
    from toolyard.cli import main

    (tmp_path / "noapp.py").write_text("import toolyard\nother = toolyard.App()\n")
    (tmp_path / "broken.py").write_text(
        "import toolyard\napp = toolyard.App()\n@app.tool\ndef f(x):\n    'Something.'\n"
    )

    def told(*arguments: str) -> tuple[int, str]:
        import subprocess
        import sys

        command = [sys.executable, "-m", "toolyard.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert told("run", "nothere:app")[0] == 2
    assert "its apps are other" in told("run", "noapp:app")[1]
    assert "tool f: the parameter x has no type: annotate it" in told("run", "broken")[1]
    code, error = told("run", "noapp:other", "--nats-url", "nats://127.0.0.1:1")
    assert (code, "cannot reach the broker at nats://127.0.0.1:1" in error) == (1, True)
    assert callable(main)
