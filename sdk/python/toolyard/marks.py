"""Marks of parameters that are no arguments of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Given", "Use"]


class Given:
    """Marks a parameter that is the caller's value of its name, or of another key, in the context of the call.

    ``user: Annotated[str, Given()]``. It is not part of the schema, and the model does not see it.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key


class Use:
    """Marks a parameter that is a resource of the app: ``db: Annotated[Database, Use(db)]``."""

    def __init__(self, resource: Callable[..., Any]) -> None:
        self.resource = resource
