"""Which JSON schemas can be enforced exactly, and where one that cannot goes wrong.

llguidance ignores keywords that it does not know, so those are refused here (its
docs/json_schema.md). It may crash or hang on a schema that a stranger wrote, so this is for the
workers of ``inference.sandbox`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

from llguidance import LLMatcher, LLParserLimits

from inference.text.errors import MalformedSchemaError, SchemaError
from inference.text.grammars import OUR_OPTIONS, TOO_DEEP, grammar_text, json_part
from inference.text.schema_enforced import (
    VACUOUS,
    enforced,
    is_number,
    original_steps,
    with_exact_bounds,
)
from inference.text.schema_places import (
    ONE_SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    STRUCTURE,
    Place,
    Schema,
    Steps,
    all_places,
    left_out,
    subschemas,
)

# llguidance refuses most values of a wrong type, some of them by a panic, and ignores the rest
# where the schema's type does not call for them.


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def _are_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (is_number, "a number")),
    **dict.fromkeys(  # a boolean in draft 4
        ("exclusiveMinimum", "exclusiveMaximum"),
        (lambda value: is_number(value) or isinstance(value, bool), "a number"),
    ),
    **dict.fromkeys(
        (
            *("minLength", "maxLength", "minItems", "maxItems"),
            *("minProperties", "maxProperties"),
        ),
        (_is_count, "a whole number, not below 0"),
    ),
    **dict.fromkeys(
        ("pattern", "format", "$ref"), (lambda value: isinstance(value, str), "a string")
    ),
    "required": (_are_texts, "a list of strings"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "type": (_are_types, f"one of {', '.join(sorted(TYPES))}, or a list of them"),
}


ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
        *("writeOnly", "$schema", "$id", "id", "$anchor", "$comment", "discriminator"),
    }
)
"""They restrict nothing; nor do keywords that start with ``x-``, except llguidance's own."""
KNOWN = STRUCTURE | ANNOTATIONS | EXPECTED.keys() | {"const"}
MAX_STEPS = 100
"""llguidance reads no more than 128."""
MAX_PROBLEMS = 32
"""After so many places that only compiling finds, the whole schema is left out."""
WORDINGS = {
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with "
    "anyOf": "oneOf is supported where at most one of its schemas can match a value; use anyOf"
}


def checked_schema(schema: Schema) -> Schema:
    """Raises ``SchemaError``."""
    for error in _refusals(schema):
        raise error
    found: Schema = enforced(schema)
    problem = find_problem(grammar_text([json_part(found)]))
    if problem is not None:
        steps = original_steps(schema, find_culprit(found, problem))
        raise SchemaError(steps, WORDINGS.get(problem, problem))
    return cast(Schema, with_exact_bounds(found))


def leniently_checked(
    schema: Schema, check: Callable[[Schema], Schema] = checked_schema
) -> tuple[Schema, list[Steps]]:
    """Leaves out what ``check`` refuses and returns its steps. Raises ``MalformedSchemaError``."""
    places: list[Steps] = []

    def leave_out(steps: Steps) -> None:
        nonlocal schema
        schema, steps = left_out(schema, steps)
        places[:] = [*places, steps] if steps else [steps]

    for error in list(_refusals(schema)):
        if isinstance(error, MalformedSchemaError):
            raise error
        leave_out(error.steps)
    for num_tries in range(MAX_PROBLEMS):
        try:
            return check(schema), places
        except SchemaError as error:
            leave_out(error.steps if num_tries < MAX_PROBLEMS - 1 else ())
    return check(schema), places


def _refusals(schema: Any) -> Iterator[SchemaError]:
    find = cache(find_problem)  # a form has many fields with the same pattern
    for place in all_places(schema):
        if len(place.steps) > MAX_STEPS:
            yield SchemaError(place.steps, TOO_DEEP)
            return
        if not isinstance(place.schema, dict):
            if not isinstance(place.schema, bool):
                yield MalformedSchemaError(place.steps, "a schema is an object or a boolean")
            continue
        for keyword, value in place.schema.items():
            steps = (*place.steps, keyword)
            if (problem := _malformed(keyword, value)) is not None:
                yield MalformedSchemaError(steps, problem)
            elif (problem := _unsupported(keyword, value, place.schema, find)) is not None:
                yield SchemaError(steps, problem)


def _malformed(keyword: str, value: Any) -> str | None:
    if keyword in SCHEMA_MAPS and not isinstance(value, dict):
        return f"{keyword!r} is an object of schemas"
    if keyword in SCHEMA_LISTS - ONE_SCHEMA and not (isinstance(value, list) and value):
        return f"{keyword!r} is a list of schemas, at least one"
    is_right, expected = EXPECTED.get(keyword, (lambda _: True, ""))
    return None if is_right(value) else f"{keyword!r} is {expected}"


def _unsupported(
    keyword: str, value: Any, schema: dict[str, Any], find: Callable[[str], str | None]
) -> str | None:
    if keyword == "nullable" and value is True:
        return None
    if keyword in VACUOUS and value in VACUOUS[keyword]:
        return None
    if keyword not in KNOWN and (keyword == OUR_OPTIONS or not keyword.startswith("x-")):
        return f"the keyword {keyword!r} is not supported"
    if keyword == "$ref" and not value.startswith("#"):
        return "only references inside the schema, as in #/$defs/name, are supported"
    if keyword == "format" and not _takes_strings(schema.get("type")):
        return f"the format {value!r} is not enforced for values that are no strings"
    if keyword in ("pattern", "format"):
        return find(grammar_text([json_part({"type": "string", keyword: value})]))
    return None


def _takes_strings(declared: Any) -> bool:
    types = declared if isinstance(declared, list) else [declared]
    return declared is None or "string" in types


MAX_COMPILED_CHARS = 200_000
"""The limit for all trials: a few tenths of a second. Schemas of tools have some thousand."""


class _EnoughTriedError(Exception):
    pass


def find_culprit(
    root: Schema, problem: str, find: Callable[[str], str | None] | None = None
) -> Steps:
    """The steps to the keyword that llguidance rejects, whose messages do not give its place.

        a subschema right below that has the problem by itself ─▶ search that one
        nothing below is to blame ─▶ the keyword without which the problem is gone

    Trials delay the requests behind this one: at the limit the narrowest place found is named.
    """
    place, num_chars = Place((), root), 0
    definitions: dict[str, Any] = {}
    if isinstance(root, dict):
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}

    def remains(schema: Any) -> bool:
        nonlocal num_chars
        schema = {**definitions, **schema} if isinstance(schema, dict) else schema
        text = grammar_text([json_part(schema)])
        num_chars += len(text)
        if num_chars > MAX_COMPILED_CHARS:
            raise _EnoughTriedError
        return (find or find_problem)(text) == problem

    try:
        while True:
            inner = next((one for one in subschemas(place) if remains(one.schema)), None)
            if inner is None:
                break
            place = inner
        keywords = place.schema if isinstance(place.schema, dict) else {}
        # Structure last: without it most problems go away.
        for keyword in sorted(keywords, key=lambda name: name == "type" or name in STRUCTURE):
            others = {name: value for name, value in keywords.items() if name != keyword}
            if not remains(others):
                return (*place.steps, keyword)
        return place.steps
    except _EnoughTriedError:
        return place.steps


LIMITS = LLParserLimits(verbose_errors=False)
"""Errors lack the parser's state, which is of no use to a client."""


def find_problem(grammar: str) -> str | None:
    """Does not check token ids."""
    is_broken, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return one_line(messages[0]) if is_broken else None


def is_panic(error: BaseException) -> bool:
    """PyO3's exception for a panic is no ``Exception``, and not exported."""
    return type(error).__name__ == "PanicException"


def one_line(message: str) -> str:
    """Messages about regular expressions have several lines; the last one has the reason."""
    if message.startswith("NoExtensionBias"):
        return "nothing can match it"
    first, *others = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{first} {others[-1].removeprefix('error: ')}" if others else first
