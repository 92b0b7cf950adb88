"""Each dialect's name for the end user."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.openai import completions as openai_completions
from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.responses import request as openai_responses
from inference.wire.vllm import rerank
from tests.cases import each_case

TURNS = {"messages": [{"role": "user", "content": "Hi"}]}
USER = {"user": "ann"}


@each_case(
    ("parse", "body"),
    [
        (openai_chat.parse, TURNS | USER),
        (openai_chat.parse, TURNS | {"safety_identifier": "ann"}),
        (openai_chat.parse, TURNS | USER | {"safety_identifier": "5f3a"}),
        (openai_completions.parse, {"prompt": "Hi"} | USER),
        (openai_responses.parse, {"input": "Hi"} | USER),
        (openai_responses.parse, {"input": "Hi", "safety_identifier": "ann"}),
        (anthropic_messages.parse, TURNS | {"max_tokens": 5, "metadata": {"user_id": "ann"}}),
        (openai_embeddings.parse, {"input": "Hi"} | USER),
        (rerank.parse_score, {"text_1": "a", "text_2": "b"} | USER),
        (rerank.parse, {"query": "a", "documents": ["b"]} | USER),
    ],
)
def test_named(parse: Callable[[bytes], Any], body: dict[str, Any]) -> None:
    parsed = parse(json.dumps({"model": "tiny", **body}).encode())
    kinds = ("generation", "embedding", "score")
    (request,) = [getattr(parsed, kind) for kind in kinds if hasattr(parsed, kind)]
    assert request.end_user == "ann"
