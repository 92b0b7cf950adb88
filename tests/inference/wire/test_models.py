"""A model's card, in both shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from anthropic.types import ModelInfo

from inference.wire.errors import InvalidRequestError
from inference.wire.models import (
    ModelCard,
    ModelLocation,
    PageRequest,
    anthropic_model,
    anthropic_model_list,
    openai_model,
    openai_model_list,
    parse_page,
)
from tests.cases import each_case

CARD = ModelCard(
    id="tiny",
    created_unix_s=1_700_000_000,
    description="A small one.",
    aliases=("claude-haiku",),
    status="ready",
    locations=(ModelLocation(node="beast", status="loaded", vram_estimate_mb=None),),
    feasible_on=("beast",),
    context_tokens=8192,
    capabilities=("chat", "completions", "structured_output", "tool_call"),
)
UNLOADED = replace(
    CARD, status="unloaded", locations=(), context_tokens=None, capabilities=None, aliases=()
)


def openai_shape(card: ModelCard) -> Any:
    return json.loads(orjson.dumps(openai_model(card, card.id)))


def anthropic_shape(card: ModelCard) -> Any:
    return json.loads(orjson.dumps(anthropic_model(card, card.id)))


@each_case("shape", [openai_shape, anthropic_shape])
@each_case(
    ("card", "limit"),
    [
        (CARD, (8192, 6144, 2048)),
        (replace(CARD, max_output_tokens=1024), (8192, 7168, 1024)),
        (replace(CARD, max_output_tokens=9000), (8192, 2048, 6144)),
        (replace(CARD, capabilities=("embeddings",)), (8192, 8192, 0)),
        (UNLOADED, None),
    ],
)
def test_the_limit_that_is_enforced(shape: Any, card: ModelCard, limit: Any) -> None:
    model = shape(card)
    names = ("context", "input", "output")
    assert model["limit"] == (None if limit is None else dict(zip(names, limit, strict=True)))
    assert model["aliases"] == list(card.aliases)
    if shape is openai_shape:  # the names that other servers have
        others = [model[f"max_{name}"] for name in ("model_len", "input_tokens", "output_tokens")]
        assert others == ([None] * 3 if limit is None else list(limit))


def test_prices_are_exact_decimals() -> None:
    for micro_usd, shown in (
        *((0, "0"), (1, "0.000001"), (150_000, "0.15"), (10**15 - 1, "999999999.999999")),
    ):
        prices = (micro_usd, 0, 20_000_000)
        for shape in (openai_model, anthropic_model):
            body = orjson.dumps(shape(replace(CARD, prices=prices), CARD.id)).decode()
            assert f'"cost":{{"input":{shown},"output":20,"cache_read":0}}' in body
            assert "cost" not in shape(CARD, CARD.id)


def test_what_it_can_do_as_anthropics_sdk_reads_it_too() -> None:
    loaded, unloaded = openai_shape(CARD), openai_shape(UNLOADED)
    assert loaded["capabilities"] == ["text", *(CARD.capabilities or ())]
    assert (loaded["tool_call"], loaded["reasoning"], loaded["loaded"]) == (True, False, True)
    assert (unloaded["capabilities"], unloaded["tool_call"], unloaded["reasoning"]) == (None,) * 3
    assert (unloaded["loaded"], unloaded["status"]) == (False, "unloaded")
    info = ModelInfo.model_validate(anthropic_shape(replace(CARD, max_output_tokens=1024)))
    assert (info.id, info.type, info.lifecycle) == ("tiny", "model", "active")
    assert info.created_at.isoformat() == "2023-11-14T22:13:20+00:00"
    assert (info.max_input_tokens, info.max_tokens) == (7168, 1024)
    capabilities = info.capabilities
    assert capabilities is not None
    assert capabilities.structured_outputs.supported
    assert not capabilities.thinking.supported and not capabilities.image_input.supported
    assert capabilities.thinking.types.adaptive.supported
    assert ModelInfo.model_validate(anthropic_shape(UNLOADED)).capabilities is None


def listed(page: PageRequest, *cards: ModelCard) -> Any:
    return json.loads(anthropic_model_list(cards, page))


def test_an_alias_is_an_entry() -> None:
    model, alias = listed(PageRequest(), CARD)["data"]
    assert (model["display_name"], alias["display_name"]) == ("tiny", "claude-haiku (tiny)")
    assert (model["aliases"], alias["aliases"]) == (["claude-haiku"], [])
    assert alias.pop("alias_of") == "tiny" and "alias_of" not in model
    same = {"id": "tiny", "display_name": "tiny", "aliases": ["claude-haiku"]}
    assert {**alias, **same} == model
    _, again = json.loads(openai_model_list([CARD]))["data"]
    assert (again["id"], again["alias_of"], again["aliases"]) == ("claude-haiku", "tiny", [])


def test_pages_meet_in_both_directions_and_others_are_refused() -> None:
    cards = [replace(CARD, id=f"m{n}", aliases=()) for n in range(7)]

    def pages(page: PageRequest, follow: str, name: str) -> list[str]:
        found, more = [], True
        while more:
            body = listed(page, *cards)
            found.append("".join(model["id"][1:] for model in body["data"]))
            page, more = PageRequest(limit=3, **{follow: body[name]}), body["has_more"]
        return found

    assert pages(PageRequest(limit=3), "after_id", "last_id") == ["012", "345", "6"]
    backwards = pages(PageRequest(limit=3, before_id="m6"), "before_id", "first_id")
    assert backwards == ["345", "012"]
    nothing = {"data": [], "first_id": None, "last_id": None, "has_more": False}
    assert listed(PageRequest()) == nothing
    for limit in ("", "0", "1001", "-1", "1.0", "x", "٣", "9" * 5000):
        with pytest.raises(InvalidRequestError, match="limit"):
            parse_page({"limit": limit})
    with pytest.raises(InvalidRequestError, match="not both"):
        parse_page({"after_id": "a", "before_id": "b"})
