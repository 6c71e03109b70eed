"""What a model sees of a function."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pydantic
import pytest
from typing_extensions import TypedDict

from toolyard import App, Context, DefinitionError, Given, Use

GOLDENS = Path(__file__).with_name("schemas")


class Unit(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


@dataclass
class Point:
    x: float
    y: float = 0.0


class Filter(pydantic.BaseModel):
    """Which files count."""

    suffix: str = pydantic.Field(description="with the dot")
    newer_than_days: Annotated[int, pydantic.Field(ge=0)] | None = None


class Movie(TypedDict):
    title: str
    year: int


class Report(pydantic.BaseModel):
    city: str
    degrees: float


app = App()


@app.resource
def database() -> str:
    return "rows"


@app.tool(read_only=True)
async def google(pattern: str, path: str = ".", ctx: Context | None = None) -> None:
    """Search files.

    Looks at every line.

    Args:
        pattern: A regular expression.
        path: Where to start.

    Returns:
        The lines.
    """


@app.tool
def numpy(count: int, exact: bool = True) -> None:
    """Count things.

    Parameters
    ----------
    count : int
        How many.
    exact : bool
        Whether it matters.
    """


@app.tool
def rest(name: str, ratio: float = 0.5) -> None:
    """Greet somebody.

    :param name: Whom.
    :param ratio: How much.
    """


@app.tool
def kinds(
    unit: Unit,
    mode: Literal["fast", "slow"],
    point: Point,
    only: Filter,
    movie: Movie,
    tags: list[str],
    table: dict[str, int],
    either: int | str,
    maybe: Optional[bool] = None,  # noqa: UP045 (people write it)
    limit: Annotated[int, pydantic.Field(ge=1, le=9, description="How many.")] = 3,
    schema: str = "a name that pydantic has too",
    deep: list[Point] = pydantic.Field(default=[], max_length=2),  # noqa: B008 (people write it)
) -> Report:
    """Take everything."""
    raise NotImplementedError


@app.tool(name="hidden.parameters", description="Not the docstring.")
def hidden(
    text: str,
    user: Annotated[str, Given()],
    trace: Annotated[int, Given("trace_id")] = 0,
    rows: Annotated[str, Use(database)] = "",
) -> None:
    """Not this."""


@pytest.mark.parametrize("name", sorted(app.tools))
def test_the_definition_of_a_function_is_the_golden_one(name: str) -> None:
    tool = app.tools[name]
    about = {key: value for key, value in tool.about.items() if value}
    about["output_schema"] = json.loads(about.get("output_schema", "null"))
    definition = json.dumps({"name": name, "about": about, "schema": tool.schema}, indent=2) + "\n"
    golden = GOLDENS / f"{name}.json"
    if os.environ.get("TOOLYARD_WRITE_SCHEMAS"):
        golden.write_text(definition)
    assert definition == golden.read_text()


def refused(function: Any, **options: Any) -> str:
    with pytest.raises(DefinitionError) as raised:
        App().tool(**options)(function)
    return str(raised.value)


def test_a_parameter_without_a_schema_is_named_when_the_module_is_loaded() -> None:
    def no_type(a, b: int = 0):  # type: ignore[no-untyped-def]
        """Something."""

    def no_schema(a: int, odd: threading_lock) -> None:
        """Something."""

    def spread(*parts: int) -> None:
        """Something."""

    def unknown(a: int, b: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Something."""

    def unknown_result(a: int) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        """Something."""

    def inside(parts: list[threading_lock]) -> None:
        """Something."""

    def callback(done: Callable[[int], None]) -> None:
        """Something."""

    def hidden_odd(user: Annotated[threading_lock, Given()]) -> None:
        """Something."""

    assert refused(no_type) == "tool no_type: the parameter a has no type: annotate it"
    assert "tool no_schema: the parameter odd has no JSON Schema" in refused(no_schema)
    assert "spread: the parameter parts has no name" in refused(spread)
    unreadable = "cannot be read: name 'Nowhere' is not defined"
    assert refused(unknown) == f"tool unknown: the type of the parameter b {unreadable}"
    assert refused(unknown_result) == f"tool unknown_result: the type of its result {unreadable}"
    named = {inside: "parts", callback: "done", hidden_odd: "user"}
    for function, parameter in named.items():
        assert f"tool {function.__name__}: the parameter {parameter} has no JSON Schema" in refused(function)
    assert "its parameters are unknown, so write a function" in refused(max)


class threading_lock:  # noqa: N801
    """No schema."""


def test_options_that_are_wrong_are_refused_when_the_module_is_loaded() -> None:
    def fine(a: int) -> None:
        """Something."""

    assert "not a name" in refused(fine, name="not a name")
    assert "permission" in refused(fine, permission="all")
    assert "timeout" in refused(fine, timeout=-1)
    assert "unknown field" in refused(fine, time_out=1)
    assert "exclusive_when" in refused(fine, exclusive_when={"type": 7})

    async def waits(a: int) -> None:
        """Something."""

    assert "process=True is for functions that are not async" in refused(waits, process=True)


def test_two_tools_of_one_name_are_refused() -> None:
    own = App()
    own.tool(google)
    with pytest.raises(DefinitionError, match="two tools have the name google"):
        own.tool(google)


def test_what_a_program_does_not_use_is_not_loaded() -> None:
    code = "import sys, toolyard; toolyard.App(), toolyard.Context, toolyard.Client; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
