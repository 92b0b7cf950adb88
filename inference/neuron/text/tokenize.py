"""Answers that need a tokenizer and no engine: a text's token ids, and the length of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import output_rules, prompt_param
from inference.neuron.text.prompt_images import check_sees, placed, refused
from inference.neuron.text.prompts import chat_prompt, checked_ids, prompt_tokens
from inference.protocol.events import Tokenized
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    TextInput,
    TokenCountRequest,
    TokenizeRequest,
    TokensInput,
)
from inference.text.errors import TooManyTokensError
from inference.text.tokenizer import read_json_object


def count_tokens(request: TokenCountRequest, text: ModelText) -> int:
    """Raises ``RequestRefusedError``, also for what no answer could be held to: the same request is
    meant to be sent."""
    (prompt,), _ = prompt_tokens(request.input, text, None)
    asked = GenerationRequest(
        model=request.model, input=request.input, output_format=request.output_format
    )
    output_rules(asked, text)
    return len(prompt)


MAX_RETURNED_TOKENS = 1_000_000
"""Most tokens of one answer; beyond any context here."""


def tokenized(request_id: str, request: TokenizeRequest, text: ModelText) -> Tokenized:
    """Raises ``RequestRefusedError``."""
    joined_text = ""
    match request.input:
        case ChatInput() as chat:
            images, vision = chat.images, text.report.vision
            check_sees(images, vision)
            token_ids = _all_ids(chat_prompt(chat, text, None), request, text)
            token_ids, _ = placed(token_ids, images, vision)
        case TextInput(texts=texts):
            (one,) = texts
            token_ids = _all_ids(one, request, text)
        case TokensInput() as given:
            (token_ids,) = given.prompts
            checked_ids(token_ids, given, text, None)
            joined_text = _joined(token_ids, text)
    return Tokenized(
        request_id=request_id,
        token_ids=token_ids,
        context_tokens=text.report.context_tokens,
        text=joined_text,
        texts=[_joined([one], text) for one in token_ids] if request.shows_texts else None,
        settings=_settings(text) if request.shows_settings else None,
    )


def _settings(text: ModelText) -> dict[str, Any]:
    """The model's tokenizer_config.json, with the chat template that is used here."""
    settings = read_json_object(Path(text.report.tokenizer_dir) / "tokenizer_config.json")
    return settings | {"chat_template": text.templates.default}


def _all_ids(one: str, request: TokenizeRequest, text: ModelText) -> list[int]:
    try:
        return text.tokenizer.encode(
            one, add_special_tokens=request.adds_special_tokens, max_tokens=MAX_RETURNED_TOKENS
        )
    except TooManyTokensError as error:
        message = (
            f"the text has {error.num_tokens} tokens; at most {MAX_RETURNED_TOKENS} are returned"
        )
        raise refused("invalid_value", message, param=prompt_param(request.input)) from None


def _joined(token_ids: list[int], text: ModelText) -> str:
    """Special tokens are written out, and bytes that are no character become U+FFFD."""
    pieces = b"".join(map(text.tokenizer.bytes_of, token_ids))
    return pieces.decode("utf-8", errors="replace")
