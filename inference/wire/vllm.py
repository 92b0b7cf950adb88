"""vLLM's own endpoints beside OpenAI's: scores of pairs of texts, and the model's tokenizer.

/v1/rerank and /rerank return the documents' text, as Jina and vLLM do, and /v2/rerank does not,
like Cohere. Sources: https://docs.cohere.com/reference/rerank, https://jina.ai/reranker,
https://docs.vllm.ai/en/latest/serving/online_serving.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from inference.protocol.events import Embedded, Event, Tokenized
from inference.protocol.generation import (
    PairsInput,
    ScoreRequest,
    TextInput,
    TokenizeRequest,
    TokensInput,
)
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError, MissingParameterError
from inference.wire.openai import chat as openai_chat
from inference.wire.openai.fields import USER, end_user_of, token_ids

MAX_DOCUMENTS = 10_000
_text = f.text(min_chars=1)
PRIORITY = f.neutral("priority", f.only(0, reason="who pays decides"), "Turns are by account.")


def text_or_object(value: Any, path: str) -> str:
    if not isinstance(value, dict):
        if not isinstance(value, str):
            raise f.wrong_type(path, "a string or an object with 'text'", value)
        return _text(value, path)
    if "text" not in value:
        raise MissingParameterError(f"{path}.text")
    read = f.read_fields(value, _DOCUMENT, path=f"{path}.")
    one: str = read["text"]
    return one


_DOCUMENT = f.table(
    f.required("text", _text, "What is compared to the query."),
    f.refused("image", "models here read text"),
    f.neutral("id", f.text(), "A label; kept nowhere."),
)
_documents: f.Check[Any] = f.array(text_or_object, MAX_DOCUMENTS, min_items=1)
_SCORING_MODEL = f.required(
    "model",
    f.model_name,
    "A model that scores pairs, or an embedding model, whose vectors' cosines are the scores.",
)

RERANK_FIELDS = f.table(
    _SCORING_MODEL,
    f.required("query", text_or_object, "A text, or an object with `text`."),
    f.required(
        "documents",
        _documents,
        "Up to 10,000 texts, or objects with `text`; none may be empty. One that does not fit into "
        "the model beside the query is refused, never cut, unless max_tokens_per_doc is set.",
    ),
    f.honoured("top_n", f.integer(1, MAX_DOCUMENTS), "Only the best so many are returned."),
    f.honoured("return_documents", f.flag, "Whether the documents' texts are returned as well."),
    f.honoured(
        "max_tokens_per_doc", f.integer(1, 2**20), "What a document has beyond that is left out."
    ),
    f.refused("max_chunks_per_doc", "documents are scored whole: use max_tokens_per_doc"),
    f.refused("rank_fields", "write the fields to compare into each document"),
    f.refused("truncate_prompt_tokens", "nothing is cut: use max_tokens_per_doc"),
    f.neutral("truncation", f.only(False, reason="nothing is cut"), "Nothing is cut."),
    f.neutral(
        "return_embeddings", f.only(False, reason="only scores are returned"), "There are none."
    ),
    PRIORITY,
    USER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest:
    score: ScoreRequest
    top_n: int | None
    returns_documents: bool
    version: int

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> EmbeddedBody:
        return EmbeddedBody(partial(self._body, request_id))

    def _body(self, request_id: str, event: Embedded) -> dict[str, Any]:
        scores, num_tokens = scores_of(event), event.usage.prompt_tokens
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        return {
            "id": f"rerank-{request_id}",
            "object": "list",
            "model": self.score.model,
            "results": [self._result(index, scores[index]) for index in order[: self.top_n]],
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            "meta": {
                "api_version": {"version": str(self.version)},
                "tokens": {"input_tokens": num_tokens, "output_tokens": 0},
            },
        }

    def _result(self, index: int, score: float) -> dict[str, Any]:
        result: dict[str, Any] = {"index": index, "relevance_score": score}
        if self.returns_documents:
            result["document"] = {"text": self.score.input.seconds[index]}
        return result


def parse_rerank(
    body: bytes, _context: RequestContext = NO_CONTEXT, *, version: int = 1
) -> RerankRequest:
    read = f.read_body(body, RERANK_FIELDS)
    return RerankRequest(
        score=ScoreRequest(
            model=read["model"],
            input=PairsInput(
                firsts=[read["query"]],
                seconds=read["documents"],
                max_second_tokens=read.get("max_tokens_per_doc"),
            ),
            end_user=end_user_of(read),
        ),
        top_n=read.get("top_n"),
        returns_documents=read.get("return_documents", version == 1),
        version=version,
    )


def scores_of(embedded: Embedded) -> list[float]:
    import numpy as np  # a gateway without embeddings does without its memory

    return [float(str(np.frombuffer(vector, dtype="<f4")[0])) for vector in embedded.vectors]


class EmbeddedBody:
    def __init__(self, body: Callable[[Embedded], dict[str, Any]]) -> None:
        self._body = body

    def encode(self, event: Event) -> bytes:
        return orjson.dumps(self._body(event)) if isinstance(event, Embedded) else b""


_texts_of_list = f.array(_text, MAX_DOCUMENTS, min_items=1)


def texts(value: Any, path: str) -> list[str]:
    return _texts_of_list(value, path) if isinstance(value, list) else [_text(value, path)]


SCORE_FIELDS = f.table(
    _SCORING_MODEL,
    f.honoured("text_1", texts, "A text, or a list of as many as text_2 has. None may be empty."),
    f.honoured("text_2", texts, "A text, or up to 10,000. One that does not fit is refused."),
    f.honoured("queries", texts, "The newer name of text_1."),
    f.honoured("documents", texts, "The newer name of text_2."),
    f.refused("truncate_prompt_tokens", "nothing is cut"),
    f.neutral(
        "activation", f.only(True, reason="scores are the model's own"), "As the model has it."
    ),
    PRIORITY,
    USER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    score: ScoreRequest

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> EmbeddedBody:
        def body(event: Embedded) -> dict[str, Any]:
            tokens, scores = event.usage.prompt_tokens, enumerate(scores_of(event))
            return {
                "id": f"score-{request_id}",
                "object": "list",
                "created": clock(),
                "model": self.score.model,
                "data": [{"index": at, "object": "score", "score": score} for at, score in scores],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
            }

        return EmbeddedBody(body)


def parse_score(body: bytes, _context: RequestContext = NO_CONTEXT) -> ScoringRequest:
    read = f.read_body(body, SCORE_FIELDS)
    firsts, seconds = _one(read, "text_1", "queries"), _one(read, "text_2", "documents")
    if len(firsts) not in (1, len(seconds)):
        raise InvalidRequestError(
            f"There are {len(firsts)} first texts and {len(seconds)} second ones.",
            param="text_1" if "text_1" in read else "queries",
        )
    pairs = PairsInput(firsts=firsts, seconds=seconds)
    return ScoringRequest(
        score=ScoreRequest(model=read["model"], input=pairs, end_user=end_user_of(read))
    )


def _one(read: dict[str, Any], name: str, newer: str) -> list[str]:
    if (name in read) == (newer in read):
        raise InvalidRequestError(f"Give '{name}' or '{newer}'.", param=name)
    found: list[str] = read[name] if name in read else read[newer]
    return found


ANY_MODEL = ""
"""Stands for the only loaded model."""
_TOKENIZED_MODEL = f.honoured(
    "model", openai_chat.FIELDS["model"].check, "Where it is left out: the only one loaded."
)
_SPECIAL = "The model's own special tokens around it; true for a prompt, false for a chat."
TOKENIZE_FIELDS = f.table(
    _TOKENIZED_MODEL,
    f.honoured("prompt", f.text(), "Text; or messages."),
    *(
        replace(openai_chat.FIELDS[name], is_required=False)
        for name in (
            "messages",
            "tools",
            "chat_template_kwargs",
            "add_generation_prompt",
            "continue_final_message",
            "chat_template",
        )
    ),
    f.honoured("add_special_tokens", f.flag, _SPECIAL),
    f.honoured("return_token_strs", f.flag, "Each token's text as well."),
)
DETOKENIZE_FIELDS = f.table(
    _TOKENIZED_MODEL, f.required("tokens", token_ids, "Token ids, at least one.")
)
CHAT_NAMES = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


def parse_tokenize(body: bytes, _context: RequestContext = NO_CONTEXT) -> TokenizeRequest:
    read = f.read_body(body, TOKENIZE_FIELDS)
    if ("prompt" in read) == ("messages" in read):
        raise InvalidRequestError("Give 'prompt' or 'messages'.", param="prompt")
    is_chat, hidden = "messages" in read, openai_chat.Reasoning.HIDDEN
    return TokenizeRequest(
        model=read.get("model", ANY_MODEL),
        input=openai_chat.chat_input(read, hidden) if is_chat else _prompt(read),
        adds_special_tokens=read.get("add_special_tokens", not is_chat),
        shows_texts=read.get("return_token_strs", False),
    )


def parse_detokenize(body: bytes, _context: RequestContext = NO_CONTEXT) -> TokenizeRequest:
    read = f.read_body(body, DETOKENIZE_FIELDS)
    return TokenizeRequest(
        model=read.get("model", ANY_MODEL), input=TokensInput(prompts=[read["tokens"]])
    )


def tokenizer_request(model: str) -> TokenizeRequest:
    return TokenizeRequest(model=model, input=TextInput(texts=[""]), shows_settings=True)


def tokenizer_body(tokenized: Tokenized) -> bytes:
    return orjson.dumps(tokenized.settings or {})


def tokenized_body(tokenized: Tokenized) -> bytes:
    return orjson.dumps(
        {
            "count": len(tokenized.token_ids),
            "max_model_len": tokenized.context_tokens,
            "tokens": tokenized.token_ids,
            "token_strs": tokenized.texts,
        }
    )


def detokenized_body(tokenized: Tokenized) -> bytes:
    return orjson.dumps({"prompt": tokenized.text})


def _prompt(read: dict[str, Any]) -> TextInput:
    for name in CHAT_NAMES:
        if name in read:
            raise InvalidRequestError(f"'{name}' is only allowed with 'messages'.", param=name)
    return TextInput(texts=[read["prompt"]])
