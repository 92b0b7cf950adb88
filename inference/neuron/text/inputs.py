"""Requests whose texts only become token ids, here or for vectors: embedding, scoring, tokenizing,
and counting a prompt.

All inputs of an embedding or scoring are one sequence to the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference.neuron.errors import RequestRefusedError, context_length_exceeded, refused
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import output_rules, prompt_param
from inference.neuron.text.prompt_images import check_sees, placed
from inference.neuron.text.prompts import chat_prompt, checked_ids, prompt_tokens
from inference.protocol.events import Tokenized
from inference.protocol.generation import (
    ChatInput,
    EmbeddingRequest,
    GenerationRequest,
    PairsInput,
    ScoreRequest,
    TextInput,
    TokenCountRequest,
    TokenizeRequest,
    TokensInput,
)
from inference.protocol.load_report import LoadReport
from inference.text.errors import TooManyTokensError
from inference.text.tokenizer import read_json_object


def prepare_embedding(request: EmbeddingRequest, text: ModelText) -> list[list[int]]:
    """Text gets the model's special tokens; token ids are taken as they are. Raises
    ``RequestRefusedError``."""
    _check_dimensions(request.dimensions, text.report)
    given, max_tokens = request.input, None
    if request.cuts_inputs:
        max_tokens = request.max_input_tokens or text.report.context_tokens
    if isinstance(given, TokensInput):
        return _checked([token_ids[:max_tokens] for token_ids in given.prompts], text.report)
    if max_tokens is None:
        return _all_encoded(given.texts, text)
    inputs = [text.tokenizer.encode_start(one, max_tokens) for one in given.texts]
    return _checked(inputs, text.report)


def prepare_scoring(request: ScoreRequest, text: ModelText) -> list[list[int]]:
    """Pairs for a model that scores pairs, else all texts, the first ones first. Raises
    ``RequestRefusedError``."""
    firsts, seconds = request.input.firsts, request.input.seconds
    if (most := request.input.max_second_tokens) is not None:
        seconds = [text.tokenizer.cut(one, most) for one in seconds]
    if text.report.kind == "embedding":
        return _all_encoded([*firsts, *seconds], text)
    return _all_encoded(PairsInput(firsts=firsts, seconds=seconds).pairs, text)


def _all_encoded(given: Sequence[str | tuple[str, str]], text: ModelText) -> list[list[int]]:
    inputs = [_encoded(one, index, text) for index, one in enumerate(given)]
    return _checked(inputs, text.report)


def _encoded(one: str | tuple[str, str], index: int, text: ModelText) -> list[int]:
    limit = text.report.context_tokens
    try:
        if not isinstance(one, str):
            return text.tokenizer.encode_pair(one, max_tokens=limit)
        return text.tokenizer.encode(one, add_special_tokens=True, max_tokens=limit)
    except TooManyTokensError as error:
        raise _too_long(index, error.num_tokens, limit, error.words) from None


def _checked(inputs: list[list[int]], report: LoadReport) -> list[list[int]]:
    limit, vocab_size = report.context_tokens, report.vocab_size
    for index, token_ids in enumerate(inputs):
        if not token_ids:
            raise refused("empty_prompt", f"input {index} holds no tokens", param="input")
        if len(token_ids) > limit:
            raise _too_long(index, len(token_ids), limit)
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < vocab_size:
                message = (
                    f"input {index} has the token id {token_id}, which is outside this model's "
                    f"vocabulary of {vocab_size}"
                )
                raise refused("bad_token_id", message, param="input")
    return inputs


def _too_long(index: int, num_tokens: int, limit: int, words: str = "") -> RequestRefusedError:
    message = (
        f"this model's maximum input length is {limit} tokens and input {index} has "
        f"{words or num_tokens}"
    )
    failure = context_length_exceeded(
        message, "input", prompt_tokens=num_tokens, context_tokens=limit
    )
    return RequestRefusedError(failure)


def _check_dimensions(asked: int | None, report: LoadReport) -> None:
    """Leading dimensions are useful alone only in models that were trained for it. The vectors do
    not show that."""
    own = report.embedding_dimensions
    if asked is None or asked == own:
        return
    if own is None or asked > own:
        message = f"this model's vectors have {own} dimensions and you asked for {asked}"
        raise refused("invalid_value", message, param="dimensions")
    if not report.is_matryoshka:
        message = (
            f"this model's vectors have {own} dimensions, and its config.json does not declare "
            "that fewer of them are of use (is_matryoshka, matryoshka_dimensions)"
        )
        raise refused("unsupported_parameter", message, param="dimensions")
    if report.matryoshka_dimensions and asked not in report.matryoshka_dimensions:
        known = ", ".join(map(str, report.matryoshka_dimensions))
        message = f"this model gives vectors of {known} or {own} dimensions, not of {asked}"
        raise refused("invalid_value", message, param="dimensions")


def count_tokens(request: TokenCountRequest, text: ModelText) -> int:
    """Raises ``RequestRefusedError`` as the same request for an answer would."""
    (prompt,), _ = prompt_tokens(request.input, text, None)
    asked = GenerationRequest(
        model=request.model, input=request.input, output_format=request.output_format
    )
    output_rules(asked, text)
    return len(prompt)


MAX_RETURNED_TOKENS = 1_000_000
"""Beyond any context here."""


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
