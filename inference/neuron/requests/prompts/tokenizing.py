"""Text to token ids and back, for clients that want to see them. Nothing is computed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.prompts.model_text import ModelText
from inference.neuron.requests.prompts.prompt_tokens import (
    chat_prompt,
    check_sees,
    checked_ids,
    placed,
)
from inference.protocol.events import Failure, Tokenized
from inference.protocol.generation import ChatInput, TextInput, TokenizeRequest, TokensInput
from inference.text.errors import TooManyTokensError
from inference.text.tokens.tokenizer import read_json_object

MAX_TOKENS = 1_000_000
"""Most tokens of one answer; beyond any context here."""


def tokenized(request_id: str, request: TokenizeRequest, text: ModelText) -> Tokenized:
    """Raises ``RequestRefusedError``."""
    joined_text = ""
    match request.input:
        case ChatInput() as chat:
            images, vision = chat.images, text.report.vision
            check_sees(images, vision)
            token_ids = _encoded(chat_prompt(chat, text, None), request, text)
            token_ids, _ = placed(token_ids, images, vision)
        case TextInput(texts=texts):
            (one,) = texts
            token_ids = _encoded(one, request, text)
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


def _encoded(one: str, request: TokenizeRequest, text: ModelText) -> list[int]:
    try:
        return text.tokenizer.encode(
            one, add_special_tokens=request.adds_special_tokens, max_tokens=MAX_TOKENS
        )
    except TooManyTokensError as error:
        message = f"the text has {error.num_tokens} tokens; at most {MAX_TOKENS} are returned"
        param = "messages" if isinstance(request.input, ChatInput) else "prompt"
        raise RequestRefusedError(
            Failure(code="invalid_value", message=message, param=param)
        ) from None


def _joined(token_ids: list[int], text: ModelText) -> str:
    """Special tokens are written out, and bytes that are no character become U+FFFD."""
    pieces = b"".join(map(text.tokenizer.bytes_of, token_ids))
    return pieces.decode("utf-8", errors="replace")
