"""Turns a parsed request into what the engine runs: rendered, tokenized, checked, decided.

    GenerationRequest ─▶ prompt_tokens ─▶ answer_limit ─▶ resolve_sampling ─▶ grammar ─▶ Prepared

It is sampled by the client's choice, else by the model's own defaults. ``Thinking`` is decided for
a chat: the markers to look for, whether its prompt has opened the block, and how long it may be.
Pure but for the tokenizer's files. Knows no Redis, no process, no other request.

Clients may ask that a conversation's oldest turns are left out until its prompt fits.

turns  | 0 | 1 | 2 | 3 |        may_lose [2, 4, 6]: how many messages the first 1, 2, 3 turns are
tried  all, then by halves: the fewest lost turns with which it fits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.neuron.errors import RequestRefusedError, bad_token_id
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import (
    UNBOUNDED,
    AnswerLimit,
    TokenBudget,
    answer_limit,
    output_rules,
)
from inference.neuron.text.prompt_tokens import PlacedImage, prompt_tokens
from inference.protocol.events import Failure, UsedSampling
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    TokenCountRequest,
    ToolDefinition,
)
from inference.protocol.load_report import LoadReport
from inference.protocol.sampling import (
    DEFAULTS_OF_MODELS,
    Grammar,
    SamplingOptions,
    SamplingParams,
    ThinkingLimit,
)
from inference.text.answers.phrases import PhraseMarkers, opens_phrase
from inference.text.answers.reasoning import ReasoningMarkers, opens_block


def resolve_sampling(
    options: SamplingOptions, max_tokens: int, report: LoadReport
) -> SamplingParams:
    """The client's choice, else the model's generation_config, else the neutral value."""
    chosen: dict[str, Any] = {}
    for name in DEFAULTS_OF_MODELS:
        value = getattr(options, name)
        if value is None:
            value = report.generation_defaults.get(name)
        if value is not None:
            chosen[name] = value
    stop_ids = [] if options.ignore_eos else report.eos_token_ids
    _check_ids_in_vocabulary(options, report.vocab_size)
    return SamplingParams(
        **chosen,
        max_tokens=max_tokens,
        logit_bias=options.logit_bias or {},
        seed=options.seed,
        top_logprobs=options.top_logprobs,
        prompt_logprobs=options.prompt_logprobs,
        stop_token_ids=list(dict.fromkeys([*stop_ids, *options.stop_token_ids])),
        min_tokens=options.min_tokens,
    )


def used_sampling(params: SamplingParams) -> UsedSampling:
    return UsedSampling(
        temperature=params.temperature,
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )


def _check_ids_in_vocabulary(options: SamplingOptions, vocab_size: int) -> None:
    for param, token_ids in (
        ("logit_bias", options.logit_bias or ()),
        ("stop_token_ids", options.stop_token_ids),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                failure = bad_token_id(token_id, vocab_size)
                raise RequestRefusedError(msgspec.structs.replace(failure, param=param))


NUM_LAST_TOKENS = 32
"""Tokens checked at a prompt's end: a phrase and the white space behind it have no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How thinking is recognised: between ``markers`` or ``phrases``. Without both, it is not
    looked for."""

    markers: ReasoningMarkers | None = None
    phrases: PhraseMarkers | None = None
    is_open: bool = False

    @classmethod
    def of(cls, chat: ChatInput, prompt: Sequence[int], text: ModelText) -> Thinking:
        """Raises ``RequestRefusedError`` for a limit that nothing could hold."""
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
        """Raises ``RequestRefusedError`` where the grammar would be the thought's."""
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
    return RequestRefusedError(Failure(code="unsupported_parameter", message=message))


NO_THINKING = Thinking()
MAX_SCORES = 2**18
"""The most log probabilities of one request's prompts: they become one body, which has some 70
bytes for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Input of the engine, and facts that the text layer needs for the answer."""

    prompts: list[list[int]]
    params: SamplingParams
    limit: AnswerLimit
    continues_text: bool
    """The answer continues the prompt's text, so its first space is part of it."""
    thinking: Thinking = NO_THINKING
    tools: Sequence[ToolDefinition] = ()
    num_lost_turns: int = 0
    """The number of oldest turns that were left out: the prompt did not fit with them."""
    images: Sequence[PlacedImage] = ()
    """The images of the prompt; there is one prompt then."""
    prediction: Sequence[int] = ()
    not_enforced: Sequence[str] = ()
    """The places in schemas of the client's body that the grammar leaves out."""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def prepare(
    request: GenerationRequest, text: ModelText, budget: TokenBudget = UNBOUNDED
) -> Prepared:
    """Raises ``RequestRefusedError`` with the failure for the client."""
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
    if not isinstance(request.input, ChatInput):
        rules = output_rules(request, text)
        params = msgspec.structs.replace(
            params, grammar=rules.grammar, prompt_logprobs=_num_scored(request)
        )
        return Prepared(
            prompts=prompts,
            params=params,
            limit=limit,
            continues_text=True,
            not_enforced=rules.not_enforced,
        )
    thinking = Thinking.of(request.input, prompts[0], text)
    opens_with_token = thinking.is_open and thinking.phrases is None
    rules = output_rules(request, text, starts_thinking=opens_with_token)
    thinking.check(rules.grammar)
    return Prepared(
        prompts=prompts,
        params=msgspec.structs.replace(
            params, grammar=rules.grammar, thinking_limit=thinking.limit(request.input)
        ),
        limit=limit,
        continues_text=bool(request.input.answer_start),
        thinking=thinking,
        tools=request.input.rendered_tools,
        num_lost_turns=num_lost_turns,
        images=images,
        prediction=_prediction(request, text),
        not_enforced=rules.not_enforced,
    )


def _num_scored(request: GenerationRequest) -> int | None:
    """The number of most likely tokens to report for each prompt token: the maximum of its echo's
    and ``prompt_logprobs``."""
    asked = [request.sampling.prompt_logprobs]
    if request.echo:
        asked.append(request.sampling.top_logprobs)
    return max((one for one in asked if one is not None), default=None)


def _check_scores(request: GenerationRequest, num_prompt_tokens: int) -> None:
    """Raises ``RequestRefusedError`` for more of them than one answer holds."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None or (num_scores := num_prompt_tokens * (num_top + 1)) <= MAX_SCORES:
        return
    message = (
        f"{num_prompt_tokens} prompt tokens with {num_top + 1} log probabilities each are "
        f"{num_scores}; a request may ask for {MAX_SCORES}"
    )
    raise RequestRefusedError(
        Failure(code="invalid_value", message=message, param="prompt_logprobs")
    )


def _prediction(request: GenerationRequest, text: ModelText) -> list[int]:
    """The token ids of the predicted answer, truncated to the longest answer; empty where the
    engine cannot use it."""
    if not request.prediction or not text.report.takes_predictions:
        return []
    token_ids = text.tokenizer.encode(request.prediction, add_special_tokens=False)
    token_ids = token_ids[: text.report.context_tokens]
    return token_ids if max(token_ids, default=0) < text.report.vocab_size else []


def _fitting(request: GenerationRequest, text: ModelText) -> tuple[GenerationRequest, int]:
    """Returns the request without as many of its oldest turns as have to go and may, and how many
    those are."""
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

    made = shortened(request.input, fits)
    return msgspec.structs.replace(request, input=made.chat), made.num_lost_turns


def count_tokens(request: TokenCountRequest, text: ModelText) -> int:
    """Raises ``RequestRefusedError``, also for what no answer could be held to: the same request is
    meant to be sent."""
    (prompt,), _ = prompt_tokens(request.input, text, None)
    asked = GenerationRequest(
        model=request.model, input=request.input, output_format=request.output_format
    )
    output_rules(asked, text)
    return len(prompt)


@dataclass(frozen=True, slots=True)
class Shortened:
    chat: ChatInput
    num_lost_turns: int = 0


def shortened(chat: ChatInput, fits: Callable[[ChatInput], bool]) -> Shortened:
    """The conversation without its oldest turns, as many as needed to fit, or without all removable
    turns if even that is not enough. ``fits`` is called a few times; it must be monotonic: true
    stays true if more is left out."""
    if not chat.may_lose or fits(chat):
        return Shortened(chat)
    least, most = 1, len(chat.may_lose)
    while least < most:
        middle = (least + most) // 2
        if fits(_without(chat, middle)):
            most = middle
        else:
            least = middle + 1
    return Shortened(_without(chat, most), most)


def _without(chat: ChatInput, num_turns: int) -> ChatInput:
    num_messages = chat.may_lose[num_turns - 1]
    kept = [message for message in chat.messages[:num_messages] if message.role == "system"]
    return msgspec.structs.replace(chat, messages=kept + chat.messages[num_messages:], may_lose=[])
