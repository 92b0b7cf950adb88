"""The rules that a request sets for its answer: how long it may be, its grammar and its sampling.

The longest answer is the client's, the operator's, or the rest of the context, by OpenAI's and
vLLM's rules: a request that does not fit is refused with both numbers, not truncated. In dialects
whose clients must send a number, and send a large one (``ends_at_context``), it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inference.neuron.errors import (
    RequestRefusedError,
    bad_token_id,
    context_length_exceeded,
    over_budget,
    prompt_too_long,
    refused,
    what_always_fits,
)
from inference.neuron.text.model_text import ModelText
from inference.protocol.engine import Grammar, SamplingParams
from inference.protocol.events import UsedSampling
from inference.protocol.generation import (
    DEFAULTS_OF_MODELS,
    ChatInput,
    GenerationRequest,
    SamplingOptions,
    Submit,
    TextInput,
    TokensInput,
    ToolChoice,
    ToolDefinition,
)
from inference.protocol.load_report import LoadReport, model_limit
from inference.sandbox.jobs import BuildGrammar
from inference.text.grammars import Thinking
from inference.text.tool_calls.grammar_rules import callable_tools


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    max_tokens: int
    reason: Literal["length", "context"] = "length"


def answer_limit(
    request: GenerationRequest,
    *,
    num_prompt_tokens: int,
    context_tokens: int,
    max_output_tokens: int | None,
    cap_output_tokens: int | None = None,
) -> AnswerLimit:
    """``cap_output_tokens``: what the caller's budget still buys, where they named no number: a
    named one is reserved. Raises ``RequestRefusedError``."""
    left = context_tokens - num_prompt_tokens
    if left < 1:
        advertised = model_limit(context_tokens, max_output_tokens)
        failure = prompt_too_long(num_prompt_tokens, advertised, prompt_param(request.input))
        raise RequestRefusedError(failure)
    asked = request.sampling.max_tokens
    if asked is None and cap_output_tokens is not None:
        if cap_output_tokens < 1:
            message = "what is left of the budget buys the prompt and not one token of an answer"
            raise refused("insufficient_quota", message, param=None)
        max_output_tokens = min(cap_output_tokens, max_output_tokens or cap_output_tokens)
    wanted = max_output_tokens if asked is None else asked
    if asked is not None and max_output_tokens is not None and asked > max_output_tokens:
        if not request.ends_at_context:
            message = (
                f"this model answers with at most {max_output_tokens} tokens and you asked for "
                f"{asked}"
            )
            raise refused("invalid_value", message, param="max_tokens")
        wanted = max_output_tokens
    if wanted is not None and wanted <= left:
        return AnswerLimit(wanted)
    if request.ends_at_context:
        return AnswerLimit(left, "context")
    if asked is None:
        return AnswerLimit(left)
    advertised = model_limit(context_tokens, max_output_tokens)
    message = (
        f"this model's maximum context length is {context_tokens} tokens and you asked for "
        f"{num_prompt_tokens + asked}: {num_prompt_tokens} in the prompt and {asked} for the "
        f"answer. {what_always_fits(advertised)}"
    )
    failure = context_length_exceeded(
        message, "max_tokens", prompt_tokens=num_prompt_tokens, context_tokens=context_tokens
    )
    raise RequestRefusedError(failure)


def prompt_param(given: ChatInput | TextInput | TokensInput) -> str:
    return "messages" if isinstance(given, ChatInput) else "prompt"


@dataclass(frozen=True, slots=True)
class TokenBudget:
    prompt_tokens: int | None = None
    """The limit of all prompts together; ``None``: there is none."""
    output_tokens: int | None = None
    """The limit of each choice for which the client named no number."""

    @classmethod
    def of(cls, submit: Submit) -> TokenBudget:
        return cls(submit.max_prompt_tokens, submit.cap_output_tokens)

    def check_prompt(self, num_tokens: int) -> None:
        """Raises ``RequestRefusedError``."""
        if self.prompt_tokens is not None and num_tokens > self.prompt_tokens:
            raise RequestRefusedError(over_budget(num_tokens, self.prompt_tokens))


UNBOUNDED = TokenBudget()


@dataclass(frozen=True, slots=True)
class OutputRules:
    grammar: Grammar | None = None
    not_enforced: Sequence[str] = ()
    """Places in the client's schemas that the grammar leaves out."""


def output_rules(
    request: GenerationRequest, text: ModelText, *, starts_thinking: bool = False
) -> OutputRules:
    """Raises ``RequestRefusedError``."""
    job = BuildGrammar(output_format=request.output_format, end_token_ids=text.report.eos_token_ids)
    if isinstance(request.input, ChatInput):
        job = _with_calls(job, request.input, text)
        thinking = _thinking(request.input, text, starts_thinking)
        job = msgspec.structs.replace(job, thinking=thinking.value, markers=text.markers)
    if not job.tools and job.output_format is None:
        return OutputRules()
    if text.report.grammar_problem is not None:
        message = f"this model's answers cannot be held to a grammar: {text.report.grammar_problem}"
        raise refused("unsupported_parameter", message, param=None)
    built = text.grammar(job)
    return OutputRules(built.grammar, built.not_enforced)


def _with_calls(job: BuildGrammar, chat: ChatInput, text: ModelText) -> BuildGrammar:
    tools, choice = chat.rendered_tools, chat.tool_choice
    if choice.mode == "required":
        _check_choice(choice, tools)
        job = msgspec.structs.replace(job, output_format=None)
    if not tools:
        return job
    tool_format = text.tool_format_of(chat)
    if tool_format is None:
        message = (
            "how this model writes tool calls is not known here: only a tool_choice that forces a "
            "call can be honoured"
        )
        raise refused("unsupported_parameter", message, param="tools")
    if job.output_format is not None:
        choice = ToolChoice(mode="required")
    return msgspec.structs.replace(
        job,
        tools=list(callable_tools(tools, choice, parallel=chat.parallel_tool_calls)),
        choice=choice,
        parallel=chat.parallel_tool_calls,
        tool_format=tool_format.name,
        marker_ids=tool_format.marker_ids(text.tokenizer),
    )


def _thinking(chat: ChatInput, text: ModelText, starts_thinking: bool) -> Thinking:
    """A model with thinking disabled is held to that, unless its template opens the block."""
    if starts_thinking:
        return Thinking.OPENED
    if text.markers is not None and text.markers.channels is not None:
        return Thinking.POSSIBLE
    if text.markers is None or chat.wants_thinking is False:
        return Thinking.NONE
    return Thinking.POSSIBLE


def _check_choice(choice: ToolChoice, tools: Sequence[ToolDefinition]) -> None:
    if not tools:
        message = "a call is required and there are no tools"
    elif choice.name not in {None, *(tool.name for tool in tools)}:
        message = f"there is no tool named {choice.name!r}"
    else:
        return
    raise refused("invalid_value", message, param="tool_choice")


def resolve_sampling(
    options: SamplingOptions, max_tokens: int, report: LoadReport
) -> SamplingParams:
    """The client's choice, else the model's generation_config, else the neutral value."""
    asked = {name: getattr(options, name) for name in DEFAULTS_OF_MODELS}
    chosen: dict[str, Any] = report.generation_defaults | {
        name: value for name, value in asked.items() if value is not None
    }
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
    names = UsedSampling.__struct_fields__
    return UsedSampling(**{name: getattr(params, name) for name in names})


def _check_ids_in_vocabulary(options: SamplingOptions, vocab_size: int) -> None:
    for param, token_ids in (
        ("logit_bias", options.logit_bias or ()),
        ("stop_token_ids", options.stop_token_ids),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                failure = bad_token_id(token_id, vocab_size)
                raise RequestRefusedError(msgspec.structs.replace(failure, param=param))
