"""A request's prompts as token ids: rendered, sized, tokenized and bounded.

    ChatInput ─▶ render ─▶ size ─▶ tokenize ─▶ place images ─▶ bounds
    TextInput ───────────▶ size ─▶ tokenize
    TokensInput ───────────────────────────────────────────▶ bounds

Pure but for the tokenizer's files.
"""

from __future__ import annotations

from inference.neuron.errors import (
    RequestRefusedError,
    arguments_too_long,
    bad_token_id,
    prompt_too_long,
    text_too_long,
)
from inference.neuron.requests.prompts.model_text import ModelText
from inference.neuron.requests.prompts.output_limits import prompt_param
from inference.neuron.requests.prompts.prompt_images import (
    PlacedImage,
    check_sees,
    images_of,
    placed,
)
from inference.protocol.events import Failure
from inference.protocol.generation import ChatInput, TextInput, TokensInput
from inference.text.answers.harmony import ANSWER_HEAD
from inference.text.answers.phrases import opens_phrase
from inference.text.answers.reasoning import opens_block
from inference.text.errors import TooManyTokensError
from inference.text.tokens.token_bounds import num_bytes

MAX_ARGUMENTS_CHARACTERS = 2**20
"""The longest arguments of one tool call. They are parsed and written again, each in one go for
which every other thread waits; all else that is done with a long conversation lets others pass."""


def prompt_tokens(
    given: ChatInput | TextInput | TokensInput, text: ModelText, max_tokens: int | None
) -> tuple[list[list[int]], list[PlacedImage]]:
    """``max_tokens`` of each; ``None``: any number. Only a chat has images."""
    match given:
        case ChatInput():
            prompt, images = _chat_tokens(given, text, max_tokens)
            return [_not_empty(prompt, "messages")], images
        case TextInput(texts=texts):
            return [_not_empty(_encoded(one, given, text, max_tokens)) for one in texts], []
        case TokensInput(prompts=prompts):
            return [
                _not_empty(checked_ids(token_ids, given, text, max_tokens)) for token_ids in prompts
            ], []


def _chat_tokens(
    chat: ChatInput, text: ModelText, max_tokens: int | None
) -> tuple[list[int], list[PlacedImage]]:
    images, vision = images_of(chat), text.report.vision
    check_sees(images, vision)
    token_ids = _encoded(chat_prompt(chat, text, max_tokens), chat, text, max_tokens)
    token_ids, found = placed(token_ids, images, vision)
    if max_tokens is not None and len(token_ids) > max_tokens:
        failure = prompt_too_long(len(token_ids), text.limit, prompt_param(chat))
        raise RequestRefusedError(failure)
    return token_ids, found


def chat_prompt(chat: ChatInput, text: ModelText, max_tokens: int | None) -> str:
    """A thinking block that the template opens is closed before the answer's own first words."""
    prompt = _render(chat, text)
    if not chat.answer_start:
        return prompt
    token_ids = _encoded(prompt, chat, text, max_tokens)
    markers = text.markers
    if markers is not None and markers.channels is not None:
        prompt += ANSWER_HEAD
    elif markers is not None and opens_block(token_ids, markers, text.tokenizer):
        prompt += f"\n{markers.closes}\n\n"
    elif text.phrases is not None and opens_phrase(prompt, text.phrases):
        prompt += f"\n{text.phrases.closes[0]}\n\n"
    return prompt + chat.answer_start


def _encoded(
    one: str, given: ChatInput | TextInput, text: ModelText, max_tokens: int | None
) -> list[int]:
    """The prompt's token ids. One that cannot fit by its size alone is refused before
    tokenizing."""
    tokenizer = text.tokenizer
    least_tokens = tokenizer.least_tokens(one)
    if max_tokens is not None and least_tokens > max_tokens:
        assert tokenizer.most_bytes_per_token is not None, "a bound that rests on nothing"
        failure = text_too_long(
            least_tokens,
            num_bytes(one),
            tokenizer.most_bytes_per_token,
            text.limit,
            prompt_param(given),
        )
        raise RequestRefusedError(failure)
    # Templates write special tokens themselves.
    adds_special_tokens = not isinstance(given, ChatInput)
    try:
        return tokenizer.encode(one, add_special_tokens=adds_special_tokens, max_tokens=max_tokens)
    except TooManyTokensError as error:
        failure = prompt_too_long(error.num_tokens, text.limit, prompt_param(given))
        raise RequestRefusedError(failure) from None


def _render(chat: ChatInput, text: ModelText) -> str:
    for message in chat.messages:
        for call in message.tool_calls:
            if len(call.arguments) > MAX_ARGUMENTS_CHARACTERS:
                raise RequestRefusedError(
                    arguments_too_long(len(call.arguments), MAX_ARGUMENTS_CHARACTERS)
                )
    return text.jobs.render(chat)


def checked_ids(
    token_ids: list[int], given: TokensInput, text: ModelText, max_tokens: int | None
) -> list[int]:
    if max_tokens is not None and len(token_ids) > max_tokens:
        failure = prompt_too_long(len(token_ids), text.limit, prompt_param(given))
        raise RequestRefusedError(failure)
    vocab_size = text.report.vocab_size
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestRefusedError(bad_token_id(token_id, vocab_size))
    return token_ids


def _not_empty(token_ids: list[int], param: str = "prompt") -> list[int]:
    if not token_ids:
        raise RequestRefusedError(
            Failure(code="empty_prompt", message="the prompt holds no tokens", param=param)
        )
    return token_ids
