"""Each field that a chat honours: its least, usual and greatest value, and one step outside.

``inside`` are accepted and held to the rules of ``answers``; ``outside`` are refused by name. A
field that needs others beside it has them in ``beside``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ANSWER_TOKENS = 100
"""A penalty that breaks at the 65th token, or a mask that leaks, does not show in ten."""
SHORT_TOKENS = 48
TALE = "Write a long tale of a lighthouse keeper, a storm and a lost ship."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    inside: tuple[Any, ...]
    outside: tuple[Any, ...] = ()
    beside: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = ANSWER_TOKENS


PENALTY = Field(inside=(-2, 0.5, 2), outside=(-2.01, 2.01, "0.5", True))
NAME = Field(inside=("", "reader-7"), outside=(3, ["reader-7"]), max_tokens=SHORT_TOKENS)
"""The end user's name, for the request's record alone."""
SAMPLED = {"temperature": 0.8, "seed": 7}
FIELDS: dict[str, Field] = {
    "temperature": Field(inside=(0, 0.7, 2), outside=(-0.01, 2.01, "hot")),
    "top_p": Field(inside=(0.01, 0.9, 1), outside=(-0.01, 1.01), beside=SAMPLED),
    "top_k": Field(inside=(-1, 0, 1, 40, 49_152), outside=(-2, 1.5), beside=SAMPLED),
    "min_p": Field(inside=(0, 0.1, 1), outside=(-0.01, 1.01), beside=SAMPLED),
    "seed": Field(
        inside=(-(2**63), -1, 0, 2**63 - 1),
        outside=(2**64, 1.5, "7"),
        beside={"temperature": 0.8},
        max_tokens=SHORT_TOKENS,
    ),
    "frequency_penalty": PENALTY,
    "presence_penalty": PENALTY,
    "repetition_penalty": Field(inside=(0.01, 1, 1.2, 10), outside=(0, -1, 10.01)),
    "logit_bias": Field(
        inside=({}, {"0": -100}, {"260": -100}, {"49151": 5}),
        outside=({"49152": 1}, {"-1": 1}, {"260": 101}, {"x": 1}, [1]),
        max_tokens=SHORT_TOKENS,
    ),
    "min_tokens": Field(inside=(0, 20, ANSWER_TOKENS), outside=(-1, ANSWER_TOKENS + 1)),
    "ignore_eos": Field(inside=(True, False), outside=("yes",)),
    "stop": Field(
        inside=(["zzz"], [" the"], "\n", [f"s{number}" for number in range(64)]),
        outside=([f"s{number}" for number in range(65)], [1]),
    ),
    "stop_token_ids": Field(inside=([], [28], [0, 49_151]), outside=([49_152], [-1], ["a"])),
    "n": Field(inside=(1, 2, 8), outside=(0, 129, 1.5), max_tokens=SHORT_TOKENS),
    "guided_choice": Field(inside=(["yes", "no"],), outside=([], [1], "yes")),
    "guided_regex": Field(inside=("[a-c]{3,9}",), outside=("[", 3)),
    "guided_json": Field(inside=(SCHEMA,), outside=({"type": "no type"}, 3)),
    "guided_grammar": Field(inside=('start: "a" "b"+ "c"',), outside=("start: (", 3)),
    "structured_outputs": Field(
        inside=({"choice": ["yes", "no"]}, {"json": SCHEMA}, {"regex": "[0-9]{4}"}),
        outside=({}, {"choice": ["a"], "regex": "b"}, {"unknown": 1}),
    ),
    "response_format": Field(
        inside=(
            {"type": "text"},
            {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        ),
        outside=({"type": "yaml"}, {"type": "json_schema"}, "json"),
    ),
    "return_token_ids": Field(inside=(True, False), outside=("yes",)),
    "prompt_logprobs": Field(inside=(0, 5, 20), outside=(-2, 21), max_tokens=SHORT_TOKENS),
    "max_tokens": Field(inside=(1, 64, 300), outside=(0, -1, 1.5, 10**9)),
    "max_completion_tokens": Field(inside=(1, 64), outside=(0, -1)),
    "logprobs": Field(inside=(True, False), outside=("yes",)),
    "top_logprobs": Field(
        inside=(0, 5, 20), outside=(-1, 21), beside={"logprobs": True}, max_tokens=SHORT_TOKENS
    ),
    "user": NAME,
    "safety_identifier": NAME,
}


def plain_body(*, max_tokens: int) -> dict[str, Any]:
    """A greedy request for a tale; the fields that are tried come on top. Without the repetition
    penalty that the model has by itself: it cannot be seen in log probabilities."""
    return {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": TALE}],
        "temperature": 0,
        "repetition_penalty": 1,
        "max_tokens": max_tokens,
    }


def body_of(name: str, value: Any) -> dict[str, Any]:
    tried = FIELDS[name]
    body = plain_body(max_tokens=tried.max_tokens) | tried.beside | {name: value}
    if name == "max_completion_tokens":
        del body["max_tokens"]
    return body
