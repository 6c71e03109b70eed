"""Clients: they have the tool calls of a model executed."""

from __future__ import annotations

import asyncio
import inspect
import json
import mimetypes
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ._bridge import begin, client_loop, wait
from .content import to_json
from .errors import RequestError
from .events import CallEnded, Event
from .turns import (
    Floor,
    Stored,
    TurnResult,
    TurnState,
    consult,
    consult_blocking,
    message_json,
    read_file,
    require_blocking,
    run_options,
    send,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import _native
    from ._options import TurnOptions

__all__ = ["AsyncClient", "AsyncTurn", "Client", "Stored", "Turn", "TurnResult"]

URL = "http://127.0.0.1:7420"
Format = Literal["openai", "openai-chat", "openai-upper", "anthropic", "gemini", "mcp"]
#: How long a client that gives up tries to cancel its run, in seconds.
_LEAVE_S = 10.0


class AsyncClient:
    """A client of a coordinator. It connects with its first request, and may be shared by many tasks.

    ``url`` is TOOLYARD_URL unless it is given, ``key`` the caller's key or token (else the file TOOLYARD_KEY_FILE),
    ``ca`` the file of the authorities that sign the coordinator's certificate (TOOLYARD_CA), ``certificate`` the files
    of the client's own certificate and its key (TOOLYARD_CLIENT_CERT, TOOLYARD_CLIENT_KEY).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    ) -> None:
        environment = os.environ
        key_file, own = environment.get("TOOLYARD_KEY_FILE"), environment.get("TOOLYARD_CLIENT_CERT")
        if key is None and key_file:
            key = _text(key_file)
        if certificate is None and own:
            certificate = (own, environment["TOOLYARD_CLIENT_KEY"])
        authorities = ca or environment.get("TOOLYARD_CA")
        self._settings = json.dumps(
            {
                "url": url or environment.get("TOOLYARD_URL") or URL,
                "key": key,
                "ca": _text(authorities) if authorities else None,
                "certificate": [_text(path) for path in certificate] if certificate else None,
            }
        )
        self._connected: _native.Client | None = None

    async def _native(self) -> _native.Client:
        if self._connected is not None:
            return self._connected
        from ._native import Client as NativeClient

        # Two first requests at once make two connections, of which one is dropped.
        connected: _native.Client = await wait(partial(NativeClient.connect, self._settings))
        self._connected = connected
        return connected

    async def request(self, name: str, fields: Mapping[str, Any]) -> Any:
        """A request of the API in its JSON, such as ``run`` or ``explain``."""
        native = await self._native()
        answer = await wait(partial(native.request, name, json.dumps(fields).encode()))
        return None if answer is None else json.loads(answer)

    def turn(self, message: Any, **options: Unpack[TurnOptions]) -> AsyncTurn:
        """Has the calls of a model's message executed: iterate over the turn for events, or await it for the result.

        The message is the answer object of ``openai``, ``anthropic`` or ``google-genai``, its dict, or its JSON. See
        :class:`toolyard._options.TurnOptions` for the options.
        """
        return AsyncTurn(self, message, options)

    async def run_calls(self, message: Any, **options: Unpack[TurnOptions]) -> list[Any]:
        """Has the calls of a model's message executed, and returns what its SDK takes next."""
        result = await self.turn(message, **options)
        if not result.complete:
            waiting = ", ".join(event.call_id for event in result.open)
            raise RequestError(f"calls wait for somebody to act: {waiting}; use turn() for them", kind="open")
        return result.messages

    async def call(self, tool: str, /, **arguments: Any) -> CallEnded:
        """Calls one tool."""
        call = {"id": "call", "type": "function", "function": {"name": tool, "arguments": to_json(arguments)}}
        result = await self.turn({"role": "assistant", "tool_calls": [call]})
        if not result.results:
            raise RequestError(
                result.messages[0]["content"] if result.messages else "nothing was called", kind="malformed"
            )
        return result.results[0]

    async def tools(self, format: Format | None = None, **filters: Any) -> list[Any]:
        """The definitions of the tools for a model, in the format of its API; without one, everything that is known.

        Filters are ``pool``, ``category``, ``tags``, ``name`` (a pattern), ``query`` and ``include_unavailable``.
        """
        native = await self._native()
        answer = json.loads(await wait(partial(native.tools, json.dumps(filters).encode(), format)))
        return answer["tools"] if format is None else [it["definition"] for it in answer]

    async def events(self, run_id: str, after: int | None = None, floor: Floor = "arrival") -> AsyncIterator[Event]:
        """The events of a run, from its beginning or from after a sequence number, until it ends."""
        native = await self._native()
        watch = await wait(partial(native.watch, run_id, after, floor))
        state = TurnState(self.request, run_id=run_id)
        while (batch := await wait(watch.next)) is not None:
            for event in state.take(batch):
                yield event

    async def run(self, run_id: str) -> dict[str, Any]:
        """A run with its calls as they are now, in the API's JSON."""
        found: dict[str, Any] = await self.request("run", {"run_id": run_id})
        return found

    async def cancel(self, run_id: str, call_id: str | None = None, reason: str = "") -> None:
        """Cancels a run, or one call of it."""
        if call_id is None:
            await self.request("cancel_run", {"run_id": run_id, "reason": reason})
        else:
            await self.request("cancel_call", {"run_id": run_id, "call_id": call_id, "reason": reason})

    async def upload(self, file: bytes | str | os.PathLike[str], media_type: str | None = None) -> Stored:
        """Uploads bytes, or the file of a path: at most 256 MiB."""
        guessed = None if isinstance(file, bytes) else mimetypes.guess_type(os.fspath(file))[0]
        data = await asyncio.to_thread(read_file, file)
        native = await self._native()
        kind = media_type or guessed or "application/octet-stream"
        stored = json.loads(await wait(partial(native.upload, kind, data)))["object"]
        return Stored(stored["object_id"], stored["media_type"], int(stored["size_bytes"]))

    async def download(self, object_id: str) -> bytes:
        """The bytes of an object."""
        native = await self._native()
        _, data = await wait(partial(native.download, object_id))
        return bytes(data)

    async def stored_files(self, files: Mapping[str, Any]) -> list[dict[str, str]]:
        """Files of a run: those that are no objects yet are uploaded."""
        found = []
        for name, file in files.items():
            stored = file if isinstance(file, Stored) else await self.upload(file)
            found.append({"tool": "_all", "name": name, "object_id": stored.object_id})
        return found


class AsyncTurn:
    """A model's message whose calls are executed. Iterate over it for events, or await it for the result.

    It begins with the first of these. If the connection breaks it connects again, and no event is lost or repeated.
    Each event goes to one reader, after its callback has ended. If a reader leaves, the next one goes on after its last
    event.
    """

    def __init__(self, client: AsyncClient, message: Any, options: TurnOptions) -> None:
        self._client = client
        self._message = message_json(message)
        # One key for all tries, so that a request which is sent again makes no second run.
        self._options: TurnOptions = {**options, "key": options.get("key") or str(uuid.uuid4())}
        #: The files of the run, once they are stored: a request that is sent again must have the same ones.
        self._files: list[dict[str, str]] | None = None
        self._was_sent = False
        self._native: _native.Turn | None = None
        self._inflight: asyncio.Future[bytes | None] | None = None
        self._lock, self._reading, self._handing_out = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self.state = TurnState(partial(_ask, client))

    @property
    def run_id(self) -> str | None:
        """The run, once its first event was read."""
        return self.state.run_id or None

    async def begin(self) -> None:
        """Has the calls accepted, if that has not begun."""
        async with self._lock:
            if self._native is None:
                self._native = await self._send()

    async def _send(self) -> _native.Turn:
        """Sends the turn. Sent again, it finds the run of its key."""
        # What cannot be read is an error before anything is sent.
        turn = _read_turn(self._message, self._options, self._files or [])
        client = await self._client._native()
        if self._files is None and (given := self._options.get("files")):
            self._files = await self._client.stored_files(given)
            turn = _read_turn(self._message, self._options, self._files)
        self.state.call_ids = [call["call_id"] for call in json.loads(turn.about())["calls"]]
        self._was_sent = True
        await wait(partial(turn.start, client, self._options.get("floor", "interleaved")))
        return turn

    async def fill(self, until: float | None = None) -> bool:
        """Waits for events in the queue, at most until a time of the monotonic clock. False after it, and at the end.

        Cancelling it loses no event.
        """
        if self.state.queue:
            return True
        if until is None:
            return await self._fill()
        filling = asyncio.ensure_future(self._fill())
        try:
            await asyncio.wait({filling}, timeout=until - time.monotonic())
            return filling.done() and filling.result()
        finally:
            filling.cancel()

    async def _fill(self) -> bool:
        await self.begin()
        assert self._native is not None
        async with self._reading:
            while not self.state.queue:
                inflight = self._inflight = self._inflight or begin(self._native.next)
                try:
                    batch = await asyncio.shield(inflight)
                except Exception:
                    self._inflight = None
                    raise
                # A reader that is cancelled before leaves it for the next one, although it may have come.
                self._inflight = None
                if batch is None:
                    return False
                self.state.queue += self.state.take(batch)
        return True

    async def _next(self) -> Event | None:
        """Hands out an event of the queue after its callback; ``None`` if another reader has taken the last one."""
        async with self._handing_out:
            if not self.state.queue:
                return None
            with self.state.handing_out() as event:
                returned = consult(event, self._options)
                if inspect.isawaitable(returned):
                    returned = await returned
                request = send(event, returned)
                if request is not None:
                    await request
            return event

    async def __aiter__(self) -> AsyncIterator[Event]:
        is_done = False
        try:
            while await self.fill():
                event = await self._next()
                if event is not None:
                    yield event
            is_done = True
        finally:
            if not is_done:
                await self._leave()

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self.result().__await__()

    async def result(self, wait_s: float | None = None) -> TurnResult:
        """Waits until all calls have ended, until nothing goes on before somebody acts, or for so many seconds.

        A callback that runs when this time is over is not interrupted.
        """
        until = None if wait_s is None else time.monotonic() + wait_s
        try:
            while _is_before(until) and (self.state.queue or not self.state.waits) and await self.fill(until):
                await self._next()
        except BaseException:
            await self._leave()
            raise
        return await self.settled()

    async def settled(self) -> TurnResult:
        """The result so far."""
        await self.begin()
        assert self._native is not None
        return self.state.result(await wait(self._native.messages))

    async def cancel(self, reason: str = "") -> None:
        """Cancels the calls that have not ended. A turn that has not begun has none.

        Before the first event was read, the turn is sent again under its key to find its run.
        """
        async with self._lock:
            if self._was_sent and not self.state.run_id:
                await self._find_run()
        if self.state.run_id and not self.state.has_ended:
            await self._client.cancel(self.state.run_id, reason=reason)

    async def _find_run(self) -> None:
        again = await self._send()
        batch = await wait(again.next)
        if batch is not None:
            found = TurnState(self.state.ask)
            found.take(batch)
            self.state.run_id = found.run_id

    async def _leave(self) -> None:
        """Cancels the calls if the reader gives up and the turn is to be cancelled then."""
        if self._options.get("on_disconnect") == "cancel":
            with suppress(RequestError, asyncio.TimeoutError):
                await asyncio.shield(asyncio.wait_for(self.cancel("its client went away"), _LEAVE_S))


async def _ask(client: AsyncClient, name: str, fields: dict[str, Any]) -> None:
    """A request of an event. It returns no response, because a callback could return that as its decision."""
    await client.request(name, fields)


def _is_before(until: float | None) -> bool:
    """Whether a time of the monotonic clock is not over; ``None`` is never over."""
    return until is None or time.monotonic() < until


def _read_turn(message: bytes, options: TurnOptions, files: list[dict[str, str]]) -> _native.Turn:
    from ._native import Turn as NativeTurn
    from ._options import TurnOptions

    if unknown := set(options) - set(TurnOptions.__annotations__):
        raise TypeError(f"a turn has no option {unknown.pop()!r}")
    return NativeTurn(message, options.get("form"), run_options(options, files))


class Client:
    """As :class:`AsyncClient`, for programs that are not async. It may be shared by threads."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
    ) -> None:
        self._inner = AsyncClient(url, key=key, ca=ca, certificate=certificate)
        self._run = client_loop().run

    def request(self, name: str, fields: Mapping[str, Any]) -> Any:
        """A request of the API in its JSON, such as ``run`` or ``explain``."""
        return self._run(self._inner.request(name, fields))

    def turn(self, message: Any, **options: Unpack[TurnOptions]) -> Turn:
        """As :meth:`AsyncClient.turn`: iterate over the turn for events, or ask for its :meth:`Turn.result`."""
        return Turn(self, message, options)

    def run_calls(self, message: Any, **options: Unpack[TurnOptions]) -> list[Any]:
        """Has the calls of a model's message executed, and returns what its SDK takes next."""
        result = self.turn(message, **options).result()
        if not result.complete:
            waiting = ", ".join(event.call_id for event in result.open)
            raise RequestError(f"calls wait for somebody to act: {waiting}; use turn() for them", kind="open")
        return result.messages

    def call(self, tool: str, /, **arguments: Any) -> CallEnded:
        """Calls one tool."""
        return self._run(self._inner.call(tool, **arguments))

    def tools(self, format: Format | None = None, **filters: Any) -> list[Any]:
        """As :meth:`AsyncClient.tools`."""
        return self._run(self._inner.tools(format, **filters))

    def events(self, run_id: str, after: int | None = None, floor: Floor = "arrival") -> Iterator[Event]:
        """As :meth:`AsyncClient.events`."""
        native = self._run(self._inner._native())
        watch = self._run(wait(partial(native.watch, run_id, after, floor)))
        state = TurnState(self.request, run_id=run_id)
        while (batch := self._run(wait(watch.next))) is not None:
            yield from state.take(batch)

    def run(self, run_id: str) -> dict[str, Any]:
        """A run with its calls as they are now, in the API's JSON."""
        return self._run(self._inner.run(run_id))

    def cancel(self, run_id: str, call_id: str | None = None, reason: str = "") -> None:
        """Cancels a run, or one call of it."""
        self._run(self._inner.cancel(run_id, call_id, reason))

    def upload(self, file: bytes | str | os.PathLike[str], media_type: str | None = None) -> Stored:
        """Uploads bytes, or the file of a path: at most 256 MiB."""
        return self._run(self._inner.upload(file, media_type))

    def download(self, object_id: str) -> bytes:
        """The bytes of an object."""
        return self._run(self._inner.download(object_id))


class Turn:
    """As :class:`AsyncTurn`, for programs that are not async."""

    def __init__(self, client: Client, message: Any, options: TurnOptions) -> None:
        require_blocking(options)
        self._run = client._run
        self._options = options
        self._inner = self._run(_make(client._inner, message, options))
        self._state = self._inner.state
        self._state.ask = partial(_ask_blocking, client)
        self._handing_out = threading.Lock()

    @property
    def run_id(self) -> str | None:
        """The run, once its first event was read."""
        return self._inner.run_id

    def __iter__(self) -> Iterator[Event]:
        is_done = False
        try:
            while self._fill():
                event = self._next()
                if event is not None:
                    yield event
            is_done = True
        finally:
            if not is_done:
                self._leave()

    def result(self, wait_s: float | None = None) -> TurnResult:
        """Waits until all calls have ended, until nothing goes on before somebody acts, or for so many seconds.

        A callback that runs when this time is over is not interrupted.
        """
        state, until = self._state, None if wait_s is None else time.monotonic() + wait_s
        try:
            while _is_before(until) and (state.queue or not state.waits) and self._fill(until):
                self._next()
        except BaseException:
            self._leave()
            raise
        return self._run(self._inner.settled())

    def cancel(self, reason: str = "") -> None:
        """As :meth:`AsyncTurn.cancel`."""
        self._run(self._inner.cancel(reason))

    def _fill(self, until: float | None = None) -> bool:
        # Events of the queue need no round trip to the client's thread.
        return bool(self._state.queue) or self._run(self._inner.fill(until))

    def _next(self) -> Event | None:
        """Hands out an event of the queue after its callback; ``None`` if another reader has taken the last one."""
        with self._handing_out:
            if not self._state.queue:
                return None
            with self._state.handing_out() as event:
                send(event, consult_blocking(event, self._options))
            return event

    def _leave(self) -> None:
        self._run(self._inner._leave())


def _ask_blocking(client: Client, name: str, fields: dict[str, Any]) -> None:
    """As :func:`_ask`."""
    client.request(name, fields)


async def _make(client: AsyncClient, message: Any, options: TurnOptions) -> AsyncTurn:
    return AsyncTurn(client, message, options)


def _text(path: str | os.PathLike[str]) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
