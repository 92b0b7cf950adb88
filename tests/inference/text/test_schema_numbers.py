"""Numbers that a grammar allows are those that its schema allows, compared as decimals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from inference.text.errors import SchemaError
from inference.text.grammars import grammar_text, json_part
from inference.text.schema_check import checked_schema

EXACTLY = Context(prec=700)
PREFERRED = ("", ".eE-0", "0123456789", "eE+0123456789")
COMPARISONS = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "multipleOf": lambda value, bound: EXACTLY.remainder(value, bound) == 0,
    "const": lambda value, constant: value == constant,
}


def _decimal(number: int | float) -> Decimal:
    return Decimal(repr(number))


def _matches(schema: dict[str, Any], value: Decimal) -> bool:
    types = schema.get("type", "number")
    if types == "integer" and value != value.to_integral_value(context=EXACTLY):
        return False
    return (
        all(
            COMPARISONS[keyword](value, _decimal(bound))
            for keyword, bound in schema.items()
            if keyword in COMPARISONS
        )
        and ("enum" not in schema or value in map(_decimal, schema["enum"]))
        and all(_matches(option, value) for option in schema.get("allOf", ()))
        and ("anyOf" not in schema or any(_matches(option, value) for option in schema["anyOf"]))
    )


TOKENIZER = LLTokenizer("byte")
MAX_BYTES = 60


def answers(schema: Any, *, seed: int, num_walks: int, preferred: str) -> Iterator[str]:
    """Returns those of ``num_walks`` answers that end within ``MAX_BYTES``. ``preferred``
    characters are chosen more often."""
    start, chosen = LLMatcher(TOKENIZER, grammar_text([json_part(schema)])), random.Random(seed)
    assert not start.is_error(), start.get_error()
    for _ in range(num_walks):
        matcher, answer = start.deep_copy(), ""
        while len(answer) < MAX_BYTES and not matcher.is_stopped():
            bias = matcher.compute_logit_bias()
            tokens = [token for token in range(128) if bias[token]]
            if matcher.is_accepting() and (not tokens or chosen.random() < 0.15):
                break
            liked = [token for token in tokens if chr(token) in preferred]
            token = chosen.choice(liked if liked and chosen.random() < 0.6 else tokens)
            assert matcher.consume_token(token), matcher.get_error()
            answer += chr(token)
        if matcher.is_accepting() or matcher.is_stopped():
            yield answer


def _check(schema: dict[str, Any], *, seed: int = 1, num_walks: int = 15) -> None:
    enforced = checked_schema(schema)
    for preferred in PREFERRED:
        for answer in answers(enforced, seed=seed, num_walks=num_walks, preferred=preferred):
            if not answer or answer[0] not in "-0123456789":
                continue  # no number: the schema's bounds do not concern it
            exponent = answer.lower().partition("e")[2]
            assert len(exponent) <= 3 or not schema.keys() & COMPARISONS.keys(), answer
            if len(exponent) <= 3:
                assert _matches(schema, Decimal(answer)), answer


BOUNDED: list[dict[str, Any]] = [
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
    {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.062},
    {"type": "number", "minimum": -0.99, "exclusiveMaximum": 0.0},
    {"type": "number", "allOf": [{"exclusiveMinimum": -0.0}, {"maximum": 0.1}]},
    {"type": "number", "minimum": -5.5, "exclusiveMaximum": -5},
    {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1},
    {"type": ["integer", "number"], "maximum": -11},
    {"type": ["integer", "number"], "enum": [-57000000000000.0, 0.5, 10, 0]},
    {"type": "number", "multipleOf": 0.01, "minimum": -3.14, "maximum": 1e6},
    {"type": "number", "multipleOf": 1000, "minimum": -8765432109876543},
    {"type": "integer", "multipleOf": 7, "exclusiveMaximum": 0},
    {"const": -0.0},
]


def test_answers_are_within_the_bounds() -> None:
    for schema in BOUNDED:
        _check(schema, num_walks=40)


NUMBERS = (
    st.integers(-20, 20)
    | st.decimals(-20, 20, places=3).map(float)
    | st.sampled_from([0.0, -0.0, 0.1, 99, 100, 9.999, 1e3, 1e17, -1e15, 2**53, 1e-7, -2.5e-6])
)
LIMITS = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
    "multipleOf": st.sampled_from([0.01, 0.5, 1, 2.5, 3, 7, 1.25, 100]),
    "enum": st.lists(NUMBERS, min_size=1, max_size=3),
    "const": NUMBERS,
}
TYPES = st.sampled_from(["integer", "number"])
LIMITED = st.fixed_dictionaries({}, optional={"type": TYPES, **LIMITS})
SCHEMAS = st.fixed_dictionaries(
    {"type": TYPES},
    optional={
        **LIMITS,
        "allOf": st.lists(LIMITED, min_size=1, max_size=2),
        "anyOf": st.lists(LIMITED, min_size=1, max_size=2),
    },
).filter(lambda schema: "anyOf" not in schema or "multipleOf" not in str(schema))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_any_numbers_that_are_accepted_are_enforced(schema: dict[str, Any], seed: int) -> None:
    try:
        _check(schema, seed=seed, num_walks=3)
    except SchemaError:
        return
