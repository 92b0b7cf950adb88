"""vLLM's /tokenize, /detokenize and /tokenizer_info: a prompt or a chat in, the model's own token
ids out, and back; the tokenizer's settings.

    parse(body) | parse_back(body) ─▶ TokenizeRequest ─▶ Tokenized ─▶ body | body_back

Source: https://docs.vllm.ai/en/latest/serving/online_serving (Tokenizer API). Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from inference.protocol.events import Tokenized
from inference.protocol.generation import ChatInput, TextInput, TokenizeRequest, TokensInput
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import InvalidRequestError
from inference.wire.fields import flag, honoured, read_body, required, table, text
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.chat.answers import Reasoning
from inference.wire.openai.fields import token_ids

ANY_MODEL = ""
"""The only model there is."""
_MODEL = honoured(
    "model", openai_chat.FIELDS["model"].check, "Where it is left out: the only one loaded."
)
_SPECIAL = "The model's own special tokens around it; true for a prompt, false for a chat."
FIELDS = table(
    _MODEL,
    honoured("prompt", text(), "Text; or messages."),
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
    honoured("add_special_tokens", flag, _SPECIAL),
    honoured("return_token_strs", flag, "Each token's text as well."),
)
BACK_FIELDS = table(_MODEL, required("tokens", token_ids, "Token ids, at least one."))
CHAT_NAMES = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


def parse(body: bytes, _context: RequestContext = NO_CONTEXT) -> TokenizeRequest:
    read = read_body(body, FIELDS)
    if ("prompt" in read) == ("messages" in read):
        raise InvalidRequestError("Give 'prompt' or 'messages'.", param="prompt")
    is_chat = "messages" in read
    return TokenizeRequest(
        model=read.get("model", ANY_MODEL),
        input=_chat(read) if is_chat else _text(read),
        adds_special_tokens=read.get("add_special_tokens", not is_chat),
        shows_texts=read.get("return_token_strs", False),
    )


def parse_back(body: bytes, _context: RequestContext = NO_CONTEXT) -> TokenizeRequest:
    """Raises ``ApiError`` (400)."""
    read = read_body(body, BACK_FIELDS)
    return TokenizeRequest(
        model=read.get("model", ANY_MODEL), input=TokensInput(prompts=[read["tokens"]])
    )


def settings_request(model: str) -> TokenizeRequest:
    return TokenizeRequest(model=model, input=TextInput(texts=[""]), shows_settings=True)


def settings_body(tokenized: Tokenized) -> bytes:
    return orjson.dumps(tokenized.settings or {})


def body(tokenized: Tokenized) -> bytes:
    return orjson.dumps(
        {
            "count": len(tokenized.token_ids),
            "max_model_len": tokenized.context_tokens,
            "tokens": tokenized.token_ids,
            "token_strs": tokenized.texts,
        }
    )


def body_back(tokenized: Tokenized) -> bytes:
    return orjson.dumps({"prompt": tokenized.text})


def _chat(read: dict[str, Any]) -> ChatInput:
    return openai_chat.chat_input(read, Reasoning.HIDDEN)


def _text(read: dict[str, Any]) -> TextInput:
    for name in CHAT_NAMES:
        if name in read:
            raise InvalidRequestError(f"'{name}' is only allowed with 'messages'.", param=name)
    return TextInput(texts=[read["prompt"]])
