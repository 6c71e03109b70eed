"""The schema of a tool, made of its function: type hints, defaults and docstring; and the arguments of a call."""

from __future__ import annotations

import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning
from pydantic_core import PydanticUndefined

from .content import CONTENT, Image
from .context import Context
from .errors import DefinitionError, NeedsInput, ToolError
from .marks import Given, Use


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass
class Signature:
    """The parameters of a tool's function."""

    name: str
    #: Fields are named `arg0`, `arg1` and so on, with the parameters as aliases, so that every parameter's name is one.
    model: type[pydantic.BaseModel]
    parameters: list[str]
    context: str | None = None
    given: dict[str, tuple[str, pydantic.TypeAdapter[Any], Any]] = field(default_factory=dict)
    uses: dict[str, Callable[..., Any]] = field(default_factory=dict)
    description: str = ""
    output_schema: str = ""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        with warnings.catch_warnings():
            # A default that is not JSON is left out, which is right.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            schema: dict[str, Any] = _untitled(self.model.model_json_schema(by_alias=True, schema_generator=_Schema))
            return schema

    def arguments(self, raw: bytes, context: Context, resources: dict[Any, Any]) -> dict[str, Any]:
        """The arguments of the function, for those of a call, which fit the schema."""
        try:
            read = self.model.model_validate_json(raw)
        except pydantic.ValidationError as error:
            raise _unfit(error) from None
        arguments = {name: getattr(read, f"arg{index}") for index, name in enumerate(self.parameters)}
        if self.context is not None:
            arguments[self.context] = context
        for name, (key, adapter, default) in self.given.items():
            arguments[name] = self._given(key, adapter, default, context)
        for name, resource in self.uses.items():
            arguments[name] = resources[resource]
        return arguments

    def _given(self, key: str, adapter: pydantic.TypeAdapter[Any], default: Any, context: Context) -> Any:
        value = context.given(key, PydanticUndefined)
        if value is PydanticUndefined:
            if default is not inspect.Parameter.empty:
                return default
            raise NeedsInput(f"{self.name} needs {key!r} in the context of its call, and nothing was given")
        try:
            return adapter.validate_python(value)
        except pydantic.ValidationError:
            # The error does not repeat what was given, because the model reads errors.
            what = "needs something else than was given for"
            raise NeedsInput(f"{self.name} {what} {key!r} in the context of its call") from None


class _Unfit(ToolError):
    kind = "arguments_invalid"


def _unfit(error: pydantic.ValidationError) -> _Unfit:
    violations = []
    for it in error.errors(include_url=False, include_context=False, include_input=False):
        path = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in it["loc"])
        violations.append((path, it["msg"]))
    text = "; ".join(f"{path or 'all'}: {message}" for path, message in violations)
    unfit = _Unfit(f"the arguments are of no use: {text}")
    unfit.violations = violations
    return unfit


def read_function(
    functions: tuple[Callable[..., Any], Callable[..., Any]],
    name: str,
    description: str | None,
    names: Mapping[str, Any],
) -> Signature:
    """Reads what is called and the function behind it, which has the annotations and the docstring.

    Raises :class:`DefinitionError`, with the parameter that has no schema. ``names`` are those of the place of the
    definition.
    """
    function, plain = functions
    try:
        hints = typing.get_type_hints(plain, localns=dict(names), include_extras=True)
    except Exception as error:
        raise DefinitionError(f"tool {name}: {_unreadable(plain, names)} cannot be read: {error}") from error
    try:
        parameters_of = inspect.signature(function).parameters
    except ValueError as error:
        raise DefinitionError(f"tool {name}: its parameters are unknown, so write a function: {error}") from error
    text, described = _docstring(plain)
    fields: dict[str, Any] = {}
    parameters: list[str] = []
    signature = Signature(name, pydantic.BaseModel, parameters, description=description or text)
    for parameter in parameters_of.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise DefinitionError(f"tool {name}: the parameter {parameter.name} has no name for a model: give it one")
        if parameter.name not in hints:
            raise DefinitionError(f"tool {name}: the parameter {parameter.name} has no type: annotate it")
        if _is_hidden(signature, parameter, hints[parameter.name]):
            continue
        info = _field(parameter, hints[parameter.name], described.get(parameter.name))
        _check(name, parameter.name, hints[parameter.name])
        fields[f"arg{len(parameters)}"] = (hints[parameter.name], info)
        parameters.append(parameter.name)
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        signature.model = pydantic.create_model(name, __config__=config, **fields)
        signature.schema()
    except Exception as error:
        raise DefinitionError(f"tool {name}: its parameters have no JSON Schema: {error}") from error
    signature.output_schema = _output_schema(hints.get("return"))
    return signature


def _is_hidden(signature: Signature, parameter: inspect.Parameter, hint: Any) -> bool:
    """Whether a parameter is no argument of the model; then it is noted in the signature."""
    types_of_hint = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if Context in types_of_hint:
        if signature.context is not None:
            raise DefinitionError(f"tool {signature.name}: {signature.context} and {parameter.name} are both a Context")
        signature.context = parameter.name
        return True
    if get_origin(hint) is not typing.Annotated:
        return False
    kind, *marks = get_args(hint)
    for mark in marks:
        mark = mark() if mark is Given else mark
        if isinstance(mark, Given):
            adapter = _check(signature.name, parameter.name, kind)
            signature.given[parameter.name] = (mark.key or parameter.name, adapter, parameter.default)
            return True
        if isinstance(mark, Use):
            signature.uses[parameter.name] = mark.resource
            return True
    return False


def _field(parameter: inspect.Parameter, hint: Any, description: str | None) -> Any:
    marks = get_args(hint)[1:] if get_origin(hint) is typing.Annotated else ()
    has_own = any(isinstance(mark, FieldInfo) and mark.description for mark in (*marks, parameter.default))
    options: dict[str, Any] = {"alias": parameter.name}
    if description and not has_own:
        options["description"] = description
    if isinstance(parameter.default, FieldInfo):
        return FieldInfo.merge_field_infos(parameter.default, validation_alias=parameter.name, **options)
    if parameter.default is not inspect.Parameter.empty:
        options["default"] = parameter.default
    return pydantic.Field(**options)


def _unreadable(function: Callable[..., Any], names: Mapping[str, Any]) -> str:
    """The annotation that cannot be read, as one that names what is imported for type checkers only."""
    known = getattr(inspect.unwrap(function), "__globals__", {})
    for name, hint in getattr(function, "__annotations__", {}).items():
        try:
            typing.get_type_hints(types.SimpleNamespace(__annotations__={name: hint}), known, dict(names))
        except Exception:
            return "the type of its result" if name == "return" else f"the type of the parameter {name}"
    return "its annotations"


def _check(tool: str, name: str, hint: Any) -> pydantic.TypeAdapter[Any]:
    """Names the parameter that has no schema."""
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hint)
        adapter.json_schema()
        return adapter
    except Exception as error:
        first = str(error).splitlines()[0]
        raise DefinitionError(f"tool {tool}: the parameter {name} has no JSON Schema: {first}") from error


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description, and those of the parameters: Google, NumPy or reST style."""
    import docstring_parser

    text = inspect.getdoc(function) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    description = "\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part)
    return description, {it.arg_name: it.description for it in parsed.params if it.description}


def _output_schema(hint: Any) -> str:
    """The schema of a result that is an object of a known type; empty for any other."""
    import json

    is_object = inspect.isclass(hint) and (
        issubclass(hint, pydantic.BaseModel) or is_dataclass(hint) or typing.is_typeddict(hint)
    )
    if not is_object or hint in (*CONTENT, Image):
        return ""
    try:
        schema = pydantic.TypeAdapter(hint).json_schema(mode="serialization", schema_generator=_Schema)
    except Exception:
        return ""
    return json.dumps(_untitled(schema))


def _untitled(schema: Any) -> Any:
    """Without the titles that are made of the names of classes: models read names, and every token counts."""
    if isinstance(schema, list):
        return [_untitled(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            found[key] = {name: _untitled(it) for name, it in value.items()}
        elif key == "title" and isinstance(value, str) and ("type" in schema or "$ref" in schema or "enum" in schema):
            continue
        elif key in ("default", "const", "enum", "examples"):
            found[key] = value
        else:
            found[key] = _untitled(value)
    return found
