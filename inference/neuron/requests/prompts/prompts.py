"""From a parsed request to what the engine runs: text rendered, tokenized, checked, decided.

    GenerationRequest ─▶ prompt_tokens ─▶ answer_limit ─▶ resolve_sampling ─▶ grammar ─▶ Prepared

Pure but for the tokenizer's files. Knows no Redis, no process, no other request.

Clients may ask that a conversation's oldest turns are left out until its prompt fits.

turns  | 0 | 1 | 2 | 3 |        may_lose [2, 4, 6]: how many messages the first 1, 2, 3 turns are
tried  all, then by halves: the fewest lost turns with which it fits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from inference.neuron.errors import (
    RequestRefusedError,
)
from inference.neuron.requests.answers.prompt_scores import check_scores, num_scored
from inference.neuron.requests.prompts.model_text import ModelText
from inference.neuron.requests.prompts.output_limits import (
    UNBOUNDED,
    AnswerLimit,
    TokenBudget,
    answer_limit,
)
from inference.neuron.requests.prompts.output_rules import request_grammar
from inference.neuron.requests.prompts.prompt_images import PlacedImage
from inference.neuron.requests.prompts.prompt_tokens import prompt_tokens
from inference.neuron.requests.prompts.sampling_params import Thinking, resolve_sampling
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    TokenCountRequest,
    ToolDefinition,
)
from inference.protocol.sampling import SamplingParams
from inference.text.templates.chat_options import rendered_tools

NO_THINKING = Thinking()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the engine is to run, and what the text layer must know of it."""

    prompts: list[list[int]]
    params: SamplingParams
    limit: AnswerLimit
    continues_text: bool
    """The answer continues the prompt's text, so its first space is part of it."""
    thinking: Thinking = NO_THINKING
    tools: Sequence[ToolDefinition] = ()
    """The tools that the answer may call."""
    num_lost_turns: int = 0
    """The oldest, which did not fit and might be left out."""
    images: Sequence[PlacedImage] = ()
    """The images of the prompt; there is one prompt then."""
    prediction: Sequence[int] = ()
    """What the client expects in the output."""

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
    check_scores(request, sum(map(len, prompts)))
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
        params = msgspec.structs.replace(
            params,
            grammar=request_grammar(request, text),
            prompt_logprobs=num_scored(request),
        )
        return Prepared(prompts=prompts, params=params, limit=limit, continues_text=True)
    thinking = Thinking.of(request.input, prompts[0], text)
    opens_with_token = thinking.is_open and thinking.phrases is None
    grammar = request_grammar(request, text, starts_thinking=opens_with_token)
    thinking.check(grammar)
    return Prepared(
        prompts=prompts,
        params=msgspec.structs.replace(
            params, grammar=grammar, thinking_limit=thinking.limit(request.input)
        ),
        limit=limit,
        continues_text=bool(request.input.answer_start),
        thinking=thinking,
        tools=rendered_tools(request.input),
        num_lost_turns=num_lost_turns,
        images=images,
        prediction=_prediction(request, text),
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
    """Without as many of its oldest turns as have to go and may; and how many those are."""
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
    request_grammar(asked, text)
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
