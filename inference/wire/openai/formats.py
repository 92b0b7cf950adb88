"""Formats of the answer's text, in OpenAI's or vLLM's fields, one at a time.

Sources: https://platform.openai.com/docs/guides/structured-outputs,
https://docs.vllm.ai/en/latest/features/structured_outputs.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from inference.protocol.generation import OutputFormat
from inference.wire import fields as f
from inference.wire.errors import InvalidRequestError, MissingParameterError

MAX_GRAMMAR_CHARS = 32 * 1024
MAX_CHOICES_OF_ANSWER = 1024
MAX_CHOICE_CHARS = 4096

STRICT_HELP = (
    "true: a schema that cannot be enforced is refused; else what cannot be enforced is left out."
)

_format_name = f.spelled(
    re.compile(r"[A-Za-z0-9_-]{1,64}"), "1 to 64 letters, digits, underscores or dashes"
)

SCHEMA_FIELDS = f.table(
    f.neutral("name", _format_name, "A label."),
    f.neutral("description", f.text(), "A note; the schema itself is enforced."),
    f.honoured("schema", f.json_schema, "A JSON schema; without one, any object."),
    f.honoured("strict", f.flag, STRICT_HELP),
)
FORMAT_FIELDS = f.table(
    f.required("type", f.one_of("text", "json_object", "json_schema"), "Which format."),
    f.honoured(
        "json_schema",
        SCHEMA_FIELDS.read,
        "With type json_schema, which needs it or schema.",
    ),
    f.honoured("schema", f.json_schema, "Extension; a JSON schema, with either of the JSON types."),
)


def response_format(value: Any, path: str) -> OutputFormat | None:
    given = FORMAT_FIELDS.read(value, path)
    kind, schema_path = given["type"], f"{path}.json_schema"
    if "json_schema" in given and kind != "json_schema":
        raise InvalidRequestError(
            f"'{schema_path}' is only allowed with the type json_schema.", param=schema_path
        )
    if "schema" in given:
        if kind == "text" or "json_schema" in given:
            raise InvalidRequestError(
                f"'{path}.schema' is only allowed with a JSON type, and without 'json_schema'.",
                param=f"{path}.schema",
            )
        return OutputFormat(path=f"{path}.schema", schema=given["schema"])
    if kind == "json_schema" and "json_schema" not in given:
        raise MissingParameterError(schema_path)
    if given.get("json_schema") == {}:
        raise MissingParameterError(f"{schema_path}.name")
    if "schema" in (read := given.get("json_schema", {})):
        return OutputFormat(
            path=f"{schema_path}.schema", schema=read["schema"], strict=read.get("strict", False)
        )
    return None if kind == "text" else OutputFormat(path=path)


def _schema(value: Any, path: str) -> OutputFormat:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise InvalidRequestError(f"'{path}' is not valid JSON.", param=path) from None
    return OutputFormat(path=path, schema=f.json_schema(value, path))


def _any_object(value: Any, path: str) -> OutputFormat | None:
    return OutputFormat(path=path) if f.flag(value, path) else None


_grammar_text = f.text(MAX_GRAMMAR_CHARS, min_chars=1)
_choices = f.array(f.text(MAX_CHOICE_CHARS, min_chars=1), MAX_CHOICES_OF_ANSWER, min_items=1)


def _format(name: str, check: f.Check[Any]) -> Callable[[Any, str], OutputFormat]:
    return lambda value, path: OutputFormat(path=path, **{name: check(value, path)})


WAYS: dict[str, tuple[Callable[[Any, str], OutputFormat | None], str]] = {
    "json": (_schema, "A JSON schema, or its text."),
    "json_object": (_any_object, "true: any JSON object."),
    "regex": (_format("regex", _grammar_text), "The whole answer matches it."),
    "choice": (_format("choices", _choices), "The answer is one of these texts."),
    "grammar": (
        _format("grammar", _grammar_text),
        "The answer follows it; Lark's or GBNF's notation.",
    ),
}
_ONE_WAY = "there is one way to do it"
STRUCTURED_FIELDS = f.table(
    *(f.honoured(name, check, note) for name, (check, note) in WAYS.items()),
    f.neutral("disable_fallback", f.flag, "There is nothing to fall back to."),
    f.neutral("backend", f.text(64), "There is one."),
    f.fixed("disable_any_whitespace", False, _ONE_WAY),
    f.fixed("disable_additional_properties", False, "set it in the schema"),
    f.refused("whitespace_pattern", _ONE_WAY),
    f.refused("structural_tag", "use tools"),
)


def structured_outputs(value: Any, path: str) -> OutputFormat | None:
    read = STRUCTURED_FIELDS.read(value, path)
    if not any(name in value for name in WAYS):
        raise InvalidRequestError(f"'{path}' needs one of {', '.join(WAYS)}.", param=path)
    return _the_only({f"{path}.{name}": read[name] for name in WAYS if name in read})


def _extension(name: str, check: f.Check[Any], note: str) -> f.Field:
    return f.honoured(name, check, f"Extension; {note[0].lower()}{note[1:]}")


OUTPUT_FIELDS: tuple[f.Field, ...] = (
    f.honoured("response_format", response_format, "text, json_object or json_schema."),
    f.honoured(
        "structured_outputs",
        structured_outputs,
        f"Extension; one of {', '.join(WAYS)}.",
    ),
    *(
        _extension(f"guided_{name}", check, note)
        for name, (check, note) in WAYS.items()
        if name != "json_object"
    ),
    f.neutral("guided_decoding_backend", f.text(64), "There is one."),
    f.refused("guided_whitespace_pattern", _ONE_WAY),
)
OUTPUT_NAMES = ("response_format", "structured_outputs", *(f"guided_{name}" for name in WAYS))


def output_format(read: dict[str, Any]) -> OutputFormat | None:
    return _the_only({name: read[name] for name in OUTPUT_NAMES if name in read})


def _the_only(demands: dict[str, OutputFormat | None]) -> OutputFormat | None:
    made = {name: demand for name, demand in demands.items() if demand is not None}
    if len(made) > 1:
        first, second, *_ = made
        raise InvalidRequestError(
            f"'{first}' and '{second}' both define the answer's format; give one of them.",
            param=second,
        )
    return next(iter(made.values()), None)


def check_with_tools(output_format: OutputFormat | None, may_call: bool) -> None:
    """A call differs from a JSON answer at its beginning, but not from other formats."""
    if output_format is not None and may_call and not output_format.is_json:
        raise InvalidRequestError(
            f"'{output_format.path}' is only allowed without tools, or with 'tool_choice' none.",
            param=output_format.path,
        )
