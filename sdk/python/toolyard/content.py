"""What tools return and stream, and its conversion to content: text, JSON, and bytes with a media type."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Content", "Data", "Image", "Json", "Progress", "Result", "Text"]

Part: TypeAlias = "tuple[str, str | bytes]"


@dataclass(frozen=True)
class Text:
    """Text. ``channel`` distinguishes streams of one call, such as ``stderr``; it counts in streamed output only."""

    text: str
    channel: str = ""


@dataclass(frozen=True)
class Json:
    """A value as JSON: also a string or a list of content, which otherwise is more than a value."""

    value: Any
    channel: str = ""


@dataclass(frozen=True)
class Data:
    """Bytes with a media type."""

    data: bytes
    media_type: str = "application/octet-stream"
    channel: str = ""


@dataclass(frozen=True)
class Image:
    """An image. Models whose API takes images in results see it; for others a note takes its place."""

    data: bytes
    media_type: str = "image/png"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Image:
        """Reads a file. Its name tells the media type."""
        media_type = mimetypes.guess_type(os.fspath(path))[0] or "image/png"
        with open(path, "rb") as file:
            return cls(file.read(), media_type)


@dataclass(frozen=True)
class Progress:
    """The progress of a call, in units of its own."""

    done: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True)
class Result:
    """A result with values for the state of the run, which the caller sees and the model does not."""

    value: Any
    state: Mapping[str, Any] = field(default_factory=dict)


Content: TypeAlias = "Text | Json | Data | Image"
CONTENT = (Text, Json, Data, Image)


def to_json(value: Any) -> str:
    """A value as JSON: plain values, dataclasses, pydantic models, dates, enums, paths, sets and more.

    NaN and infinities become null.
    """
    import pydantic_core

    try:
        # JSON has no NaN and no infinity.
        return pydantic_core.to_json(value, by_alias=True, inf_nan_mode="null").decode()
    except pydantic_core.PydanticSerializationError as error:
        raise TypeError(f"a value of the type {type(value).__name__} is not JSON: {error}") from None


def to_part(value: Any) -> Part:
    """One part of a result."""
    if isinstance(value, str):
        # `str()` of an enum is its member's name.
        return ("text", str.__str__(value))
    if isinstance(value, Text):
        return ("text", value.text)
    if isinstance(value, Json):
        return ("json", to_json(value.value))
    if isinstance(value, (Data, Image)):
        return (value.media_type, bytes(value.data))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("application/octet-stream", bytes(value))
    return ("json", to_json(value))


def to_parts(value: Any) -> tuple[list[Part], list[tuple[str, str]]]:
    """The parts of a result, and the state beside it. Nothing becomes ``Done``, because models need an answer."""
    state: list[tuple[str, str]] = []
    if isinstance(value, Result):
        state = [(key, to_json(it)) for key, it in value.state.items()]
        value = value.value
    if value is None:
        return [], state
    if isinstance(value, (list, tuple)) and any(isinstance(it, CONTENT) for it in value):
        return [to_part(it) for it in value], state
    return [to_part(value)], state


def to_piece(value: Any) -> tuple[str, str, Any]:
    """A piece of streamed output: its kind, its channel and its payload."""
    if isinstance(value, str):
        return ("text", "", str.__str__(value))
    if isinstance(value, Progress):
        return ("progress", "", (float(value.done), None if value.total is None else float(value.total), value.message))
    kind, payload = to_part(value)
    return (kind, getattr(value, "channel", "") if isinstance(value, (Text, Json, Data)) else "", payload)


def from_piece(kind: str, channel: str, payload: Any) -> Content | Progress:
    """The content of a kind and a payload."""
    if kind == "progress":
        return Progress(*payload)
    if kind == "text":
        return Text(payload, channel)
    if kind == "json":
        import json

        return Json(json.loads(payload), channel)
    return Data(payload, kind, channel)


def from_wire(content: Mapping[str, Any], channel: str = "") -> Content:
    """The content of the API's JSON. A stored object is shown by its preview."""
    if content.get("text") is not None:
        return Text(content["text"], channel)
    if content.get("json") is not None:
        import json

        return Json(json.loads(content["json"]), channel)
    if (data := content.get("data")) is not None:
        return Data(base64.b64decode(data["data"]), data["media_type"], channel)
    stored = content.get("object") or {}
    return Text(stored.get("preview") or f"[{stored.get('media_type')}: {stored.get('object_id')}]", channel)


def to_wire(value: Any) -> list[dict[str, Any]]:
    """Content in the API's JSON."""

    def part(kind: str, payload: str | bytes) -> dict[str, Any]:
        if isinstance(payload, bytes):
            return {"data": {"media_type": kind, "data": base64.b64encode(payload).decode()}}
        return {kind: payload}

    return [part(kind, payload) for kind, payload in to_parts(value)[0]]
