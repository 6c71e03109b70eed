"""The tools of the torture command in Python: they do what those of its workers in Rust do, by the same policies."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

from toolyard import App, Context, Result, Retry

app = App("python")


@app.tool(name="python_echo", read_only=True)
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@app.tool(name="python_sleep", read_only=True)
async def sleep(ms: int, text: str) -> str:
    """Give the text back later."""
    await asyncio.sleep(ms / 1000)
    return text


@app.tool(name="python_count", read_only=True)
async def count(label: str, pieces: int, every_ms: int) -> AsyncIterator[str | Result]:
    """Count slowly."""
    for piece in range(pieces):
        if every_ms:
            await asyncio.sleep(every_ms / 1000)
        yield f"{label}-{piece} "
    yield Result(f"counted to {pieces}")


@app.tool(name="python_fails", read_only=True)
def fails(attempts: int, ctx: Context) -> Generator[str, None, str]:
    """Fail some attempts, on a thread."""
    yield f"attempt {ctx.attempt}"
    if ctx.attempt <= attempts:
        raise Retry("not yet")
    return "at last"


@app.tool(name="python_writes", runs_alone=False)
def writes(path: str, line: str, then_wait_ms: int) -> None:
    """Append a line to a file, on a thread, and take some time."""
    with open(path, "ab", buffering=0) as file:
        # In one piece, so that lines of several writers do not mix.
        file.write(f"{line}\n".encode())
    time.sleep(then_wait_ms / 1000)


async def speak(
    label: str, pieces: int, every_ms: int, ctx: Context, breaks_off_after: int, failures: int
) -> AsyncIterator[str | Result]:
    """Speak, and break off at first."""
    first = ctx.continue_from
    for piece in range(first, pieces):
        await asyncio.sleep(every_ms / 1000)
        yield f"{label}-{piece} "
        if ctx.attempt <= failures and piece + 1 - first >= breaks_off_after:
            raise Retry("broke off")
    yield Result(f"attempt {ctx.attempt} went from {first} to {pieces}")


policies: dict[str, Any] = {"speech": "restart", "resuming": "continue", "buffering": "buffer"}
for name, policy in policies.items():
    app.tool(
        name=f"python_{name}",
        description="Speak, and break off at first.",
        idempotent=True,
        attempts=5,
        backoff=(0.1, 0.1),
        runs_alone=False,
        after_partial_output=policy,
    )(speak)


def end_with_parent() -> None:
    """The pipe closes when the torture command ends, however it does."""
    while os.read(0, 1):
        pass
    os._exit(0)


threading.Thread(target=end_with_parent, daemon=True).start()
