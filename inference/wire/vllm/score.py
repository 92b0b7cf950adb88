"""vLLM's /score: one number for each pair of texts.

    parse(body) ─▶ ScoringRequest(score)        ScoreBodyEncoder.encode(event) ─▶ b"" … one body

Source: https://docs.vllm.ai/en/latest/serving/online_serving (Score API). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.events import Embedded, Event
from inference.protocol.generation import PairsInput, ScoreRequest
from inference.wire.common.fields import (
    array,
    honoured,
    neutral,
    only,
    read_fields,
    read_json_object,
    refused,
    table,
    text,
)
from inference.wire.dialect import NO_CONTEXT, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError
from inference.wire.openai.sampling import USER, end_user_of
from inference.wire.vllm.rerank import MAX_DOCUMENTS, MODEL, same_number, scores_of

_text = text(min_chars=1)
_texts_of_list = array(_text, MAX_DOCUMENTS, min_items=1)


def texts(value: Any, path: str) -> list[str]:
    """A string, or a list of them."""
    found: list[str] = (
        _texts_of_list(value, path) if isinstance(value, list) else [_text(value, path)]
    )
    return found


FIELDS = table(
    MODEL,
    honoured("text_1", texts, "A text, or a list of as many as text_2 has. None may be empty."),
    honoured("text_2", texts, "A text, or up to 10,000. One that does not fit is refused."),
    honoured("queries", texts, "The newer name of text_1."),
    honoured("documents", texts, "The newer name of text_2."),
    refused("truncate_prompt_tokens", "nothing is cut"),
    neutral("activation", only(True, reason="scores are the model's own"), "As the model has it."),
    neutral("priority", only(0, reason="who pays decides"), "Turns are by account."),
    USER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    score: ScoreRequest

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> ScoreBodyEncoder:
        return ScoreBodyEncoder(self.score.model, request_id, clock)


def parse(body: bytes, _context: RequestContext = NO_CONTEXT) -> ScoringRequest:
    """Raises ``ApiError`` (400)."""
    read = read_fields(read_json_object(body), FIELDS, required=("model",))
    firsts, seconds = _one(read, "text_1", "queries"), _one(read, "text_2", "documents")
    same_number(len(firsts), len(seconds), "text_1" if "text_1" in read else "queries")
    pairs = PairsInput(firsts=firsts, seconds=seconds)
    return ScoringRequest(
        score=ScoreRequest(model=read["model"], input=pairs, end_user=end_user_of(read))
    )


def _one(read: dict[str, Any], name: str, newer: str) -> list[str]:
    if (name in read) == (newer in read):
        raise InvalidRequestError(f"Give '{name}' or '{newer}'.", param=name)
    found: list[str] = read[name] if name in read else read[newer]
    return found


class ScoreBodyEncoder:
    def __init__(self, model: str, request_id: str, clock: UnixClock) -> None:
        self._model = model
        self._request_id = request_id
        self._clock = clock

    def encode(self, event: Event) -> bytes:
        if not isinstance(event, Embedded):
            return b""
        num_tokens = event.usage.prompt_tokens
        return orjson.dumps(
            {
                "id": f"score-{self._request_id}",
                "object": "list",
                "created": self._clock(),
                "model": self._model,
                "data": [
                    {"index": index, "object": "score", "score": score}
                    for index, score in enumerate(scores_of(event))
                ],
                "usage": {
                    "prompt_tokens": num_tokens,
                    "total_tokens": num_tokens,
                    "completion_tokens": 0,
                },
            }
        )
