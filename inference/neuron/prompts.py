"""From a parsed request to what the engine runs: text rendered, tokenized, checked, decided.

    GenerationRequest ─▶ render ─▶ tokenize ─▶ check limits ─▶ resolve sampling ─▶ Prompt

Pure but for the tokenizer's files. Knows no Redis, no process, no other request.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inference.neuron.errors import (
    RequestRefusedError,
    bad_token_id,
    context_length_exceeded,
)
from inference.protocol.events import Failure
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    TextInput,
    TokenCountRequest,
    TokensInput,
)
from inference.protocol.load import LoadReport, LoadSpec
from inference.protocol.sampling import SamplingOptions, SamplingParams
from inference.text.chat_template import ChatTemplate, find_templates
from inference.text.detokenizer import Detokenizer
from inference.text.errors import TemplateRenderError
from inference.text.tokenizer import Tokenizer

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """The text side of one loaded model. Any thread may use it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    report: LoadReport

    @classmethod
    def load(cls, spec: LoadSpec, report: LoadReport) -> ModelText:
        """Reads the report's tokenizer directory. Raises ``TextError``."""
        directory = Path(report.tokenizer_dir)
        tokenizer = Tokenizer.load(directory)
        templates = find_templates(directory, spec.chat_template)
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate(templates, tokenizer.special_tokens),
            report=report,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the engine is to run, and what the text layer must know of it."""

    prompts: list[list[int]]
    params: SamplingParams
    continues_text: bool
    """The answer goes on from the prompt's text, so its first space is part of it."""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def prepare(request: GenerationRequest, text: ModelText) -> Prepared:
    """Raises ``RequestRefusedError`` with the failure to tell the client."""
    prompts = _prompts(request.input, text)
    longest = max(map(len, prompts))
    max_tokens = _max_tokens(longest, request, text.report.context_tokens)
    return Prepared(
        prompts=prompts,
        params=resolve_sampling(request.sampling, max_tokens, text.report),
        continues_text=not isinstance(request.input, ChatInput),
    )


def count_tokens(request: TokenCountRequest, text: ModelText) -> int:
    """Raises ``RequestRefusedError``."""
    (prompt,) = _prompts(request.input, text)
    return len(prompt)


def echo_text(index: int, prepared: Prepared, text: ModelText, request: GenerationRequest) -> str:
    """What ``echo`` puts before an answer to prompt ``index``: the client's own text, or its tokens
    as text."""
    if isinstance(request.input, TextInput):
        return request.input.texts[index]
    detokenizer = Detokenizer(text.tokenizer)
    return detokenizer.feed(prepared.prompts[index]) + detokenizer.flush()


def _prompts(given: ChatInput | TextInput | TokensInput, text: ModelText) -> list[list[int]]:
    match given:
        case ChatInput():
            return [text.tokenizer.encode(_render(given, text), add_special_tokens=False)]
        case TextInput(texts=texts):
            encoded = [text.tokenizer.encode(one, add_special_tokens=True) for one in texts]
            return [_not_empty(token_ids) for token_ids in encoded]
        case TokensInput(prompts=prompts):
            vocab_size = text.report.vocab_size
            return [_not_empty(_checked_ids(token_ids, vocab_size)) for token_ids in prompts]


def _render(chat: ChatInput, text: ModelText) -> str:
    try:
        return text.template.render(chat)
    except TemplateRenderError as error:
        raise RequestRefusedError(
            Failure(code="template_render_failed", message=str(error), param="messages")
        ) from error


def _checked_ids(token_ids: list[int], vocab_size: int) -> list[int]:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestRefusedError(bad_token_id(token_id, vocab_size))
    return token_ids


def _not_empty(token_ids: list[int]) -> list[int]:
    if not token_ids:
        raise RequestRefusedError(
            Failure(code="empty_prompt", message="the prompt holds no tokens", param="prompt")
        )
    return token_ids


def _max_tokens(num_prompt_tokens: int, request: GenerationRequest, limit: int) -> int:
    """The rules of OpenAI and vLLM: what does not fit is refused with both numbers, not cut."""
    asked = request.sampling.max_tokens
    if num_prompt_tokens + 1 > limit:
        message = (
            f"this model's maximum context length is {limit} tokens and the prompt has "
            f"{num_prompt_tokens}, which leaves no room for an answer"
        )
        param = "messages" if isinstance(request.input, ChatInput) else "prompt"
        raise RequestRefusedError(context_length_exceeded(message, param))
    if asked is not None and num_prompt_tokens + asked > limit:
        message = (
            f"this model's maximum context length is {limit} tokens and you asked for "
            f"{num_prompt_tokens + asked}: {num_prompt_tokens} in the prompt and {asked} for the "
            "answer"
        )
        raise RequestRefusedError(context_length_exceeded(message, "max_tokens"))
    return limit - num_prompt_tokens if asked is None else asked


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
        stop_token_ids=list(dict.fromkeys([*stop_ids, *options.stop_token_ids])),
        min_tokens=options.min_tokens,
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
