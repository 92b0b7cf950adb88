"""Every parser answers spoilt bodies with a request or a refusal, never with anything else.

    seed body ─▶ 0 to 3 changes of its values ─▶ JSON ─▶ now and then a change of its bytes ─▶ bytes

The seeds are the dialect's own answered golden requests, so a new dialect is in here by its cases.
A change needs no knowledge of any dialect: names and values come from the seeds themselves, and
from what parsers have stumbled over, in a seeded, repeatable way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
import pytest

from inference.gateway.images import without_files
from inference.protocol.generation import Request, Submit, decode_inbox_frame, encode_inbox_frame
from inference.wire import vllm
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import RequestContext
from inference.wire.errors import ApiError
from inference.wire.images import ImageRules
from inference.wire.openai import batches as openai_batches
from inference.wire.openai.batches import read_lines
from inference.wire.responses import request as openai_responses
from tests.cases import each_case
from tests.inference.wire.golden import DIALECTS, batch_cases, cases, inside

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 128, 129, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.5, 1.0, -0.5, 1e-320, 1e308, -1e308, "", " ", "x", "\x00", "\u202e", "é\u0301", "😀"),
    *("auto", "none", "text", "1", "-1", "x" * 5000, [], {}, [[]], [{}], [None], [0], [""]),
    *({"": None}, {"type": "text"}, {"a": {"a": {"a": 1}}}),
)
ODD_TEXTS = (
    *(b"1" * 40, b"-" + b"9" * 400, b"1e999", b"-1e999", b"NaN", b"-Infinity", b"-0", b"01", b"+1"),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'"\\x"', b"'a'", b"tru"),
    *(b"[" * 33 + b"]" * 33, b'{"a":' * 33 + b"1" + b"}" * 33),
    *(b"[" * 2000 + b"]" * 2000, b"[" * 2000, b'{"a":' * 900 + b"{}" + b"}" * 900),
)
ODD_NAMES = ("", "x", "type", "unknown_field", "Model", "é", "\u202e", "a.b", "n" * 300)


def random_bodies(seeds: list[dict[str, Any]], count: int, seed: int) -> Iterator[bytes]:
    """``count`` bodies made of ``seeds``, valid requests. Equal arguments give equal bodies."""
    random = Random(seed)
    nodes = [node for one in seeds for node in _nodes(one)]
    names = sorted({name for node in nodes if isinstance(node, dict) for name in node})
    texts = [*map(orjson.dumps, ODD_VALUES), *ODD_TEXTS, *sorted(set(map(orjson.dumps, nodes)))]
    values = [orjson.Fragment(text) for text in texts]
    bodies = [orjson.dumps(one) for one in seeds]
    for _ in range(count):
        body = orjson.loads(random.choice(bodies))
        for _ in range(random.choice((0, 1, 1, 1, 1, 2, 2, 3))):
            _change(body, random, [*names, *ODD_NAMES], values)
        text = orjson.dumps(body)
        if random.random() < 0.08:  # cut short, with a slice missing, doubled or moved
            start, end = random.randint(0, len(text)), random.randint(0, len(text))
            odd = bytes([random.randrange(256)])
            text = random.choice([text[:start], text[:start] + text[end:], text[:end] + odd + text])
        yield text


def _change(body: Any, random: Random, names: list[str], values: list[orjson.Fragment]) -> None:
    """Changes one value in place. What it puts in is never changed again."""
    node, key = body, None
    while node:
        key = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or random.random() < 0.3:
            break
        node, key = node[key], None
    name, value, draw = random.choice(names), random.choice(values), random.random()
    if key is None or draw < 0.2:
        if isinstance(node, dict):
            node[name] = value
        else:
            node.append(value)
    elif draw < 0.6:
        node[key] = value
    elif draw < 0.7:
        del node[key]
    elif draw < 0.85 and isinstance(node, dict):
        node[name] = node.pop(key)
    else:
        same = orjson.Fragment(orjson.dumps(node[key]))
        node[key] = random.choice([[same], [same, same], {name: same}])


def _nodes(value: Any) -> Iterator[Any]:
    """The value itself and everything in it."""
    yield value
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _nodes(child)


NUM_BODIES = (2_000, pytest.param(100_000, marks=pytest.mark.slow))


def seeds_of(dialect: str, *only: str) -> list[dict[str, Any]]:
    """The bodies of its answered cases, or these fields of them."""
    bodies = [case.parts["request"] for case in cases(dialect) if case.is_answered]
    return [{name: body[name] for name in body if not only or name in only} for body in bodies]


def outcomes(parse: Any, seeds: list[dict[str, Any]], num_bodies: int) -> Counter[str]:
    """How often each code was answered, or the request was accepted."""
    found: Counter[str] = Counter()
    for body in random_bodies(seeds, num_bodies, seed=3):
        try:
            parse(body)
            found["accepted"] += 1
        except ApiError as error:
            assert 400 <= error.status < 500 and error.message, body
            found[error.code] += 1
        except Exception as error:
            raise AssertionError(f"{body[:2000]!r} broke the parser") from error
    assert min(found["accepted"], found.total() - found["accepted"]) > num_bodies / 20, found
    return found


@pytest.mark.parametrize("num_bodies", NUM_BODIES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_or_a_refusal(dialect: str, num_bodies: int) -> None:
    read, errors = DIALECTS[dialect]

    def parse(body: bytes) -> None:
        try:
            request = read(body, RequestContext())
        except ApiError as error:
            errors.error_body(error, request_id="r")
            raise
        crosses_to_the_neuron(inside(request))

    codes = outcomes(parse, seeds_of(dialect), num_bodies)
    assert {"invalid_json", "invalid_type", "unsupported_parameter"} <= codes.keys(), codes


def crosses_to_the_neuron(request: Request) -> None:
    request, _ = without_files(request, ImageRules())
    submit = Submit(request_id="r", gateway_id="g", model="m", request=request, deadline_unix_s=0.0)
    assert decode_inbox_frame(encode_inbox_frame(submit)) == submit


MADE = {one.dialect: one.parts for one in batch_cases() if one.name == "made"}
(LINES,) = (one.parts["lines"] for one in batch_cases() if one.name == "lines")
LINE = LINES[0].encode()
OTHER_LINE = json.loads(LINE) | {"custom_id": "another"}
TOKENIZE = {"model": "tiny", "prompt": "Hi", "add_special_tokens": True, "return_token_strs": True}


@each_case(
    ("parse", "seeds"),
    [
        (openai_batches.parse_batch, [MADE["openai_batches"]["request"]]),
        (lambda body: [*anthropic_batches.parse(body)], [MADE["anthropic_batches"]["request"]]),
        (
            lambda body: list(read_lines([body, b"\n", LINE], "/v1/chat/completions")),
            [OTHER_LINE],
        ),
        (vllm.parse_tokenize, [TOKENIZE]),
        (
            lambda body: crosses_to_the_neuron(anthropic_messages.parse_count(body)),
            seeds_of("anthropic_messages", *anthropic_messages.COUNT_FIELDS),
        ),
        (
            lambda body: openai_responses.count_of(openai_responses.parse_count(body)),
            seeds_of("openai_responses", *openai_responses.COUNT_FIELDS),
        ),
    ],
    ids=["openai_batch", "anthropic_batch", "lines", "tokenize", "anthropic_count", "openai_count"],
)
def test_bodies_of_other_kinds(parse: Any, seeds: list[dict[str, Any]]) -> None:
    outcomes(parse, seeds, 1_500)
