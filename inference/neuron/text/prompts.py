"""Turns a parsed request into what the engine runs: rendered, tokenized, checked, decided.

    GenerationRequest ─▶ prompt_tokens ─▶ answer_limit ─▶ resolve_sampling ─▶ grammar ─▶ Prepared

    ChatInput ─▶ render ─▶ written ─▶ size ─▶ tokenize ─▶ placed ─▶ bounds
    TextInput ──────────────────────▶ size ─▶ tokenize
    TokensInput ──────────────────────────────────────────────────▶ bounds

Clients may ask that a conversation's oldest turns are left out until its prompt fits.

turns  | 0 | 1 | 2 | 3 |        may_lose [2, 4, 6]: how many messages the first 1, 2, 3 turns are
tried  all, then by halves: the fewest lost turns with which it fits
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from inference.neuron.errors import (
    RequestRefusedError,
    bad_token_id,
    prompt_too_long,
    refused,
)
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import (
    UNBOUNDED,
    AnswerLimit,
    TokenBudget,
    answer_limit,
    output_rules,
    prompt_param,
    resolve_sampling,
)
from inference.neuron.text.prompt_images import PlacedImage, check_sees, placed, written
from inference.protocol.engine import Grammar, SamplingParams, ThinkingLimit
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    TextInput,
    TokensInput,
    ToolDefinition,
)
from inference.text.errors import TooManyTokensError
from inference.text.phrases import PhraseMarkers, opens_phrase
from inference.text.reasoning import ANSWER_HEAD, ReasoningMarkers, opens_block

NUM_LAST_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    markers: ReasoningMarkers | None = None
    phrases: PhraseMarkers | None = None
    is_open: bool = False

    @classmethod
    def of(cls, chat: ChatInput, prompt: Sequence[int], text: ModelText) -> Thinking:
        """Raises ``RequestRefusedError`` for a limit that cannot be enforced."""
        if text.phrases is None:
            is_open = opens_block(prompt, text.markers, text.tokenizer)
            return cls(markers=text.markers, is_open=is_open)
        if chat.answer_start or (text.phrases.is_asked_for and chat.wants_thinking is False):
            return cls()
        if chat.thinking_budget_tokens is not None:
            raise _unsupported("no single token ends this model's thinking, so it has no limit")
        last = b"".join(map(text.tokenizer.bytes_of, prompt[-NUM_LAST_TOKENS:]))
        is_open = opens_phrase(last.decode(errors="replace"), text.phrases)
        return cls(phrases=text.phrases, is_open=is_open)

    def check(self, grammar: Grammar | None) -> None:
        """Raises ``RequestRefusedError`` where the grammar would apply to the thought."""
        if grammar is not None and self.phrases is not None and self.is_open:
            raise _unsupported(
                "no single token ends the thinking that this model's template begins, so what "
                "follows it cannot be held to a grammar"
            )

    def limit(self, chat: ChatInput) -> ThinkingLimit | None:
        markers = self.markers
        if chat.thinking_budget_tokens is None or markers is None:
            return None
        return ThinkingLimit(
            max_tokens=chat.thinking_budget_tokens,
            end_token_id=markers.end_token_id,
            start_token_id=None if self.is_open else markers.start_token_id,
            follows_token_id=None if self.is_open else markers.follows_token_id,
        )


def _unsupported(message: str) -> RequestRefusedError:
    return refused("unsupported_parameter", message, param=None)


MAX_ARGUMENTS_CHARACTERS = 2**20
"""Every other thread waits while the arguments of one tool call are parsed and written again."""


def prompt_tokens(
    given: ChatInput | TextInput | TokensInput, text: ModelText, max_tokens: int | None
) -> tuple[list[list[int]], list[PlacedImage]]:
    """``max_tokens``: of each prompt; ``None``: any number."""
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
    images, vision = chat.images, text.report.vision
    if images:
        check_sees(images, vision)
    token_ids = _encoded(chat_prompt(chat, text, max_tokens), chat, text, max_tokens)
    found: list[PlacedImage] = []
    if images:
        token_ids, found = placed(token_ids, images, vision)
    _check_length(len(token_ids), chat, text, max_tokens)
    return token_ids, found


def chat_prompt(chat: ChatInput, text: ModelText, max_tokens: int | None) -> str:
    """Closes a thinking block that the template opens before the answer's own first words."""
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
    # Templates write special tokens themselves.
    adds_special_tokens = not isinstance(given, ChatInput)
    try:
        return text.tokenizer.encode(
            one, add_special_tokens=adds_special_tokens, max_tokens=max_tokens
        )
    except TooManyTokensError as error:
        failure = prompt_too_long(error.num_tokens, text.limit, prompt_param(given), error.words)
        raise RequestRefusedError(failure) from None


def _check_length(
    num_tokens: int, given: ChatInput | TextInput | TokensInput, text: ModelText, most: int | None
) -> None:
    if most is not None and num_tokens > most:
        raise RequestRefusedError(prompt_too_long(num_tokens, text.limit, prompt_param(given)))


def _render(chat: ChatInput, text: ModelText) -> str:
    for turn in chat.messages:
        for call in turn.tool_calls:
            if len(call.arguments) > MAX_ARGUMENTS_CHARACTERS:
                message = (
                    f"the arguments of a tool call are {len(call.arguments)} characters long; at "
                    f"most {MAX_ARGUMENTS_CHARACTERS} are read"
                )
                raise refused("invalid_value", message)
    prompt = text.render(chat)
    return written(prompt, chat.images, text.report.vision) if chat.images else prompt


def checked_ids(
    token_ids: list[int], given: TokensInput, text: ModelText, max_tokens: int | None
) -> list[int]:
    _check_length(len(token_ids), given, text, max_tokens)
    vocab_size = text.report.vocab_size
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestRefusedError(bad_token_id(token_id, vocab_size))
    return token_ids


def _not_empty(token_ids: list[int], param: str = "prompt") -> list[int]:
    if not token_ids:
        raise refused("empty_prompt", "the prompt holds no tokens", param=param)
    return token_ids


MAX_SCORES = 2**18
"""One request's scores become one body, with some 70 bytes for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    prompts: list[list[int]]
    params: SamplingParams
    limit: AnswerLimit
    continues_text: bool
    """The answer continues the prompt's text, so its first space is part of it."""
    thinking: Thinking
    tools: Sequence[ToolDefinition]
    num_lost_turns: int
    images: Sequence[PlacedImage]
    """With images there is one prompt."""
    prediction: Sequence[int]
    not_enforced: Sequence[str]
    """Places in the client's schemas that the grammar leaves out."""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def prepare(
    request: GenerationRequest, text: ModelText, budget: TokenBudget = UNBOUNDED
) -> Prepared:
    """Raises ``RequestRefusedError``."""
    request, num_lost_turns = _fitting(request, text)
    prompts, images = prompt_tokens(request.input, text, text.report.context_tokens - 1)
    budget.check_prompt(sum(map(len, prompts)))
    _check_scores(request, sum(map(len, prompts)))
    limit = answer_limit(
        request,
        num_prompt_tokens=max(map(len, prompts)),
        context_tokens=text.report.context_tokens,
        max_output_tokens=text.max_output_tokens,
        cap_output_tokens=budget.output_tokens,
    )
    # The engine samples one token at least; where none was asked for, it is not reported.
    params = resolve_sampling(request.sampling, max(1, limit.max_tokens), text.report)
    chat = request.input if isinstance(request.input, ChatInput) else None
    thinking = Thinking() if chat is None else Thinking.of(chat, prompts[0], text)
    opens_with_token = thinking.is_open and thinking.phrases is None
    rules = output_rules(request, text, starts_thinking=opens_with_token)
    thinking.check(rules.grammar)
    params = msgspec.structs.replace(
        params,
        grammar=rules.grammar,
        prompt_logprobs=_num_scored(request),
        thinking_limit=None if chat is None else thinking.limit(chat),
    )
    return Prepared(
        prompts=prompts,
        params=params,
        limit=limit,
        continues_text=chat is None or bool(chat.answer_start),
        thinking=thinking,
        tools=[] if chat is None else chat.rendered_tools,
        num_lost_turns=num_lost_turns,
        images=images,
        prediction=[] if chat is None else _prediction(request, text),
        not_enforced=rules.not_enforced,
    )


def _num_scored(request: GenerationRequest) -> int | None:
    asked = [request.sampling.prompt_logprobs]
    if request.echo:
        asked.append(request.sampling.top_logprobs)
    return max((one for one in asked if one is not None), default=None)


def _check_scores(request: GenerationRequest, num_prompt_tokens: int) -> None:
    num_top = request.sampling.prompt_logprobs
    if num_top is None or (num_scores := num_prompt_tokens * (num_top + 1)) <= MAX_SCORES:
        return
    message = (
        f"{num_prompt_tokens} prompt tokens with {num_top + 1} log probabilities each are "
        f"{num_scores}; a request may ask for {MAX_SCORES}"
    )
    raise refused("invalid_value", message, param="prompt_logprobs")


def _prediction(request: GenerationRequest, text: ModelText) -> list[int]:
    if not request.prediction or not text.report.takes_predictions:
        return []
    token_ids = text.tokenizer.encode(request.prediction, add_special_tokens=False)
    token_ids = token_ids[: text.report.context_tokens]
    return token_ids if max(token_ids, default=0) < text.report.vocab_size else []


def _fitting(request: GenerationRequest, text: ModelText) -> tuple[GenerationRequest, int]:
    if not isinstance(request.input, ChatInput) or not request.input.may_lose:
        return request, 0
    room = text.report.context_tokens - (request.sampling.max_tokens or 1)

    def fits(chat: ChatInput) -> bool:
        try:
            (prompt,), _ = prompt_tokens(chat, text, max(1, room))
        except RequestRefusedError as refused:
            if refused.failure.code != "context_length_exceeded":
                raise
            return False
        return len(prompt) <= room

    chat, num_lost_turns = shortened(request.input, fits)
    return msgspec.structs.replace(request, input=chat), num_lost_turns


def shortened(chat: ChatInput, fits: Callable[[ChatInput], bool]) -> tuple[ChatInput, int]:
    """Loses as few turns as needed, or all removable ones. ``fits`` must be monotonic: true stays
    true if more is left out."""
    if not chat.may_lose or fits(chat):
        return chat, 0
    most = len(chat.may_lose)
    num_turns = bisect_left(range(most), True, lo=1, key=lambda num: fits(_without(chat, num)))
    return _without(chat, num_turns), num_turns


def _without(chat: ChatInput, num_turns: int) -> ChatInput:
    num_messages = chat.may_lose[num_turns - 1]
    kept = [message for message in chat.messages[:num_messages] if message.role == "system"]
    return msgspec.structs.replace(chat, messages=kept + chat.messages[num_messages:], may_lose=[])
