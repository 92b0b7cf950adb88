"""Fields of the embeddings endpoints: least, usual and greatest values, and one step outside."""

from __future__ import annotations

from typing import Any

from tests.strangers.fields.field_values import Field

DIMENSIONS = 384
LIMIT = 256
"""Tokens of an input."""
VOCAB_SIZE = 30_522
LONG = "word " * (LIMIT + 50)
MOST_INPUTS = 2048

DIMENSION = Field(inside=(DIMENSIONS,), outside=(0, DIMENSIONS // 2, DIMENSIONS + 1, "384"))
TEXTS = ("Hello", ["Hello"], ["One text.", "Another one."], ["a"] * MOST_INPUTS)
NO_TEXTS = ("", [], [""], ["a", ""], ["a"] * (MOST_INPUTS + 1), 3, LONG, ["a", LONG])
IDS = ([101, 7592, 102], [[101, 7592, 102], [101, 102]], [VOCAB_SIZE - 1])
NO_IDS = ([[]], [-1], [VOCAB_SIZE], [[101], "Hello"], [1.5])
EMBEDDING_FIELDS: dict[str, dict[str, Field]] = {
    "/v1/embeddings": {
        "input": Field(inside=(*TEXTS, *IDS), outside=(*NO_TEXTS, *NO_IDS)),
        "dimensions": DIMENSION,
        "encoding_format": Field(inside=("float", "base64"), outside=("hex", 3)),
        "truncate_prompt_tokens": Field(
            inside=(-1, 3, LIMIT), outside=(-2, 0, "3"), beside={"input": LONG}
        ),
        "user": Field(inside=("", "reader-7"), outside=(3,)),
    },
    "/api/embed": {
        "input": Field(inside=TEXTS, outside=NO_TEXTS, beside={"truncate": False}),
        "dimensions": DIMENSION,
        "truncate": Field(inside=(True,), outside=("yes",), beside={"input": LONG}),
    },
    "/api/embeddings": {"prompt": Field(inside=("Hello",), outside=(3,))},
}


def plain_body(path: str) -> dict[str, Any]:
    field = "prompt" if path == "/api/embeddings" else "input"
    return {"model": MODEL, field: "A lighthouse keeper in a storm."}


MODEL = "all-minilm-l6-v2"


def body_of(path: str, name: str, value: Any) -> dict[str, Any]:
    return plain_body(path) | EMBEDDING_FIELDS[path][name].beside | {name: value}
