"""The tools of the bench in Python: async, and on threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from toolyard import App

app = App("python")


@app.tool(name="python_noop", read_only=True)
async def noop() -> None:
    """Do nothing."""


@app.tool(name="python_chunks", read_only=True)
async def chunks(count: int, bytes: int, every_ms: int = 0) -> AsyncIterator[str]:
    """Say many things, with a pause before each."""
    piece = "x" * bytes
    for _ in range(count):
        if every_ms:
            await asyncio.sleep(every_ms / 1000)
        yield piece


@app.tool(name="python_threads_noop", read_only=True)
def threads_noop() -> None:
    """Do nothing."""


@app.tool(name="python_threads_chunks", read_only=True)
def threads_chunks(count: int, bytes: int, every_ms: int = 0) -> Iterator[str]:
    """Say many things, with a pause before each."""
    piece = "x" * bytes
    for _ in range(count):
        if every_ms:
            time.sleep(every_ms / 1000)
        yield piece
