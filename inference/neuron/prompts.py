"""From a parsed request to what the engine runs: text rendered, tokenized, checked, decided.

    GenerationRequest ─▶ render ─▶ size ─▶ tokenize ─▶ check limits ─▶ resolve sampling ─▶ Prompt

Pure but for the tokenizer's files. Knows no Redis, no process, no other request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.neuron.allowance import UNBOUNDED, Allowance
from inference.neuron.errors import (
    RequestRefusedError,
    arguments_too_long,
    bad_token_id,
    prompt_too_long,
    text_too_long,
)
from inference.neuron.images import PlacedImage, check_sees, images_of, placed
from inference.neuron.limits import AnswerLimit, answer_limit, prompt_param
from inference.neuron.model_text import ModelText
from inference.neuron.output_rules import request_grammar
from inference.neuron.prompt_scores import check_scores, num_scored
from inference.neuron.shortening import shortened
from inference.neuron.thinking import Thinking
from inference.protocol.events import Failure, UsedSampling
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    TextInput,
    TokenCountRequest,
    TokensInput,
    ToolDefinition,
)
from inference.protocol.load import LoadReport
from inference.protocol.sampling import SamplingOptions, SamplingParams
from inference.text.chat_template import rendered_tools
from inference.text.errors import (
    NoPlaceForToolsError,
    TemplateRenderError,
    TooManyTokensError,
)
from inference.text.harmony import ANSWER_HEAD
from inference.text.phrases import opens_phrase
from inference.text.reasoning import opens_block
from inference.text.token_bounds import num_bytes

MODEL_DEFAULT_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""SamplingOptions for which ``None`` means generation_config's value, else the neutral one."""

NO_THINKING = Thinking()
MAX_ARGUMENTS_CHARACTERS = 2**20
"""Of one tool call. They are parsed and written again, each in one go for which every other thread
waits; all else that is done with a long conversation lets them pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the engine is to run, and what the text layer must know of it."""

    prompts: list[list[int]]
    params: SamplingParams
    limit: AnswerLimit
    continues_text: bool
    """The answer goes on from the prompt's text, so its first space is part of it."""
    thinking: Thinking = NO_THINKING
    tools: Sequence[ToolDefinition] = ()
    """Those that the answer may call."""
    num_lost_turns: int = 0
    """The oldest, which did not fit and might be left out."""
    images: Sequence[PlacedImage] = ()
    """Of the prompt, which is one then."""
    prediction: Sequence[int] = ()
    """What the client expects in the output."""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def prepare(
    request: GenerationRequest, text: ModelText, allowance: Allowance = UNBOUNDED
) -> Prepared:
    """Raises ``RequestRefusedError`` with the failure to tell the client."""
    request, num_lost_turns = _fitting(request, text)
    prompts, images = _prompts(request.input, text, text.report.context_tokens - 1)
    allowance.check_prompt(sum(map(len, prompts)))
    check_scores(request, sum(map(len, prompts)))
    limit = answer_limit(
        request,
        num_prompt_tokens=max(map(len, prompts)),
        context_tokens=text.report.context_tokens,
        max_output_tokens=text.max_output_tokens,
        cap_output_tokens=allowance.output_tokens,
    )
    # The engine samples one token at least; where none was asked for, nobody is told.
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
    """Nothing where the engine makes no use of it. What is longer than an answer can be is of no
    use."""
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
            (prompt,), _ = _prompts(chat, text, max(1, room))
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
    (prompt,), _ = _prompts(request.input, text, None)
    asked = GenerationRequest(
        model=request.model, input=request.input, output_format=request.output_format
    )
    request_grammar(asked, text)
    return len(prompt)


def _prompts(
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
        failure = prompt_too_long(len(token_ids), text.report.context_tokens, prompt_param(chat))
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
    """Refused by its size alone where that tells that it cannot fit."""
    tokenizer, context_tokens = text.tokenizer, text.report.context_tokens
    least_tokens = tokenizer.least_tokens(one)
    if max_tokens is not None and least_tokens > max_tokens:
        assert tokenizer.most_bytes_per_token is not None, "a bound that rests on nothing"
        failure = text_too_long(
            least_tokens,
            num_bytes(one),
            tokenizer.most_bytes_per_token,
            context_tokens,
            prompt_param(given),
        )
        raise RequestRefusedError(failure)
    # Templates write special tokens themselves.
    adds_special_tokens = not isinstance(given, ChatInput)
    try:
        return tokenizer.encode(one, add_special_tokens=adds_special_tokens, max_tokens=max_tokens)
    except TooManyTokensError as error:
        failure = prompt_too_long(error.num_tokens, context_tokens, prompt_param(given))
        raise RequestRefusedError(failure) from None


def _render(chat: ChatInput, text: ModelText) -> str:
    for message in chat.messages:
        for call in message.tool_calls:
            if len(call.arguments) > MAX_ARGUMENTS_CHARACTERS:
                raise RequestRefusedError(
                    arguments_too_long(len(call.arguments), MAX_ARGUMENTS_CHARACTERS)
                )
    try:
        return text.template.render(chat)
    except TemplateRenderError as error:
        param = "tools" if isinstance(error, NoPlaceForToolsError) else "messages"
        raise RequestRefusedError(
            Failure(code="template_render_failed", message=str(error), param=param)
        ) from error


def checked_ids(
    token_ids: list[int], given: TokensInput, text: ModelText, max_tokens: int | None
) -> list[int]:
    if max_tokens is not None and len(token_ids) > max_tokens:
        context_tokens = text.report.context_tokens
        failure = prompt_too_long(len(token_ids), context_tokens, prompt_param(given))
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


def resolve_sampling(
    options: SamplingOptions, max_tokens: int, report: LoadReport
) -> SamplingParams:
    """The client's choice, else the model's generation_config, else the neutral value."""
    chosen: dict[str, Any] = {}
    for name in MODEL_DEFAULT_FIELDS:
        value = getattr(options, name)
        if value is None:
            value = report.generation_defaults.get(name)
            if name == "top_k" and value is not None and value == int(value):
                value = int(value)  # some generation_config.json files write 50.0
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
