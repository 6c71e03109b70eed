"""Resources of an app: made when it starts, shared by all calls, closed when it ends."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

Resource = Callable[..., Any]


class Lifespan:
    """The resources of a running app."""

    def __init__(self, resources: list[Resource]) -> None:
        self._resources = resources
        self._stack = contextlib.AsyncExitStack()
        self.values: dict[Resource, Any] = {}

    async def open(self) -> None:
        """Makes the resources, in the order of their definitions. If one fails, those before it are closed."""
        async with contextlib.AsyncExitStack() as stack:
            for resource in self._resources:
                self.values[resource] = await _enter(stack, resource)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        """Closes the resources, the last one first."""
        await self._stack.aclose()


async def _enter(stack: contextlib.AsyncExitStack, resource: Resource) -> Any:
    """Makes a resource: of a function that returns it, or of a generator that yields it and then closes it."""
    if inspect.isasyncgenfunction(resource):
        return await stack.enter_async_context(contextlib.asynccontextmanager(resource)())
    if inspect.isgeneratorfunction(resource):
        return stack.enter_context(contextlib.contextmanager(resource)())
    made = resource()
    if inspect.isawaitable(made):
        return await made
    if hasattr(made, "__aenter__"):
        return await stack.enter_async_context(made)
    if hasattr(made, "__enter__"):
        return stack.enter_context(made)
    return made
