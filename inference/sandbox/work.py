"""Does one job, in a worker. Knows neither sockets nor limits: the worker process sets them."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Iterable
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from inference.garbage import release_freed_memory
from inference.protocol.generation import OutputFormat
from inference.sandbox import jobs
from inference.sandbox.errors import LossReason
from inference.text.errors import (
    GrammarTextError,
    NoPlaceForToolsError,
    SchemaError,
    TemplateRenderError,
)
from inference.text.grammars.compiling import LIMITS, find_problem, is_panic, one_line, text_part
from inference.text.grammars.parts import TOO_DEEP, grammar_text, json_part
from inference.text.schemas.places import Schema, Steps
from inference.text.schemas.rewrites import original_steps, rewritten
from inference.text.schemas.schema_check import checked_schema, find_culprit, leniently_checked
from inference.text.templates.chat_template import ChatTemplate
from inference.text.templates.template_sources import TemplateSources
from inference.text.tokens.token_bytes import num_bytes


def perform(job: jobs.Job, max_output_bytes: int) -> jobs.Result:
    """Never raises: a panic of the compiler, which is no ``Exception``, is a result as well."""
    try:
        return _perform(job, max_output_bytes)
    except MemoryError:
        return jobs.Broken(reason=LossReason.MEMORY)
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is no Exception
        return jobs.Broken(reason=LossReason.CRASH, where=_where(error))


def _where(error: BaseException) -> str:
    """The error's type and line; without the message, which may quote the request."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{type(error).__name__} in {frame.f_code.co_filename}:{line}"


def _perform(job: jobs.Job, max_output_bytes: int) -> jobs.Result:
    match job:
        case jobs.CheckSchema():
            return _check_schema(job)
        case jobs.CheckText():
            return _check_text(job.output_format, job.tokenizer)
        case jobs.CheckGrammar():
            return _verdict(job.text, job.tokenizer)
        case jobs.RenderChat():
            return _render(job, max_output_bytes)


def _check_schema(job: jobs.CheckSchema) -> jobs.Result:
    try:
        sent = json.loads(job.schema)
        return _checked(sent, job)
    except SchemaError as error:
        return jobs.Refused(message=str(error), steps=list(error.steps))
    except RecursionError:
        return jobs.Refused(message=TOO_DEEP)
    except BaseException as error:
        if not is_panic(error):
            raise
        steps = list(_panicking_steps(sent, job))
        return jobs.Broken(reason=LossReason.CRASH, where=_where(error), steps=steps)


def _checked(sent: Any, job: jobs.CheckSchema) -> jobs.Checked:
    check = partial(_enforceable, tokenizer=job.tokenizer)
    left_out: list[Steps] = []
    if job.is_lenient:
        schema, left_out = leniently_checked(sent, check)
    else:
        schema = check(sent)
    enforced = json.dumps(schema)
    return jobs.Checked(
        text="" if enforced == job.schema else enforced, left_out=[list(one) for one in left_out]
    )


def _enforceable(sent: Schema, tokenizer: str) -> Schema:
    schema = checked_schema(sent)
    find = partial(trial_problem, digest=tokenizer)
    problem = find(grammar_text([json_part(schema)]))
    if problem is not None:
        raise SchemaError(original_steps(sent, find_culprit(schema, problem, find)), problem)
    return schema


def _panicking_steps(sent: Any, job: jobs.CheckSchema) -> Steps:
    """The steps to the keyword of ``sent`` without which nothing panics."""

    def find(grammar: str) -> str | None:
        try:
            find_problem(grammar)
            trial_problem(grammar, job.tokenizer)
        except BaseException as error:
            if is_panic(error):
                return LossReason.CRASH
            raise
        return None

    return original_steps(sent, find_culprit(rewritten(sent), LossReason.CRASH, find))


def _check_text(output_format: OutputFormat, tokenizer: str) -> jobs.Result:
    try:
        part = text_part(output_format)
    except GrammarTextError as error:
        return jobs.Refused(message=str(error))
    return _verdict(grammar_text([part]), tokenizer, part["lark_grammar"])


def _verdict(grammar: str, tokenizer: str, text: str = "") -> jobs.Result:
    problem = find_problem(grammar) or trial_problem(grammar, tokenizer)
    return jobs.Checked(text=text) if problem is None else jobs.Refused(message=problem)


def _render(job: jobs.RenderChat, max_output_bytes: int) -> jobs.Result:
    sources = TemplateSources(job.default_template, job.tool_template)
    try:
        rendering = ChatTemplate(sources, job.special_tokens).render(job.chat)
    except TemplateRenderError as error:
        return jobs.RenderRefused(
            message=str(error), has_no_place_for_tools=isinstance(error, NoPlaceForToolsError)
        )
    if num_bytes(rendering.text) > max_output_bytes:
        return jobs.Broken(reason=LossReason.OUTPUT)
    return jobs.Rendered(text=rendering.text, loses_system_turns=rendering.loses_system_turns)


NUM_TOKENS = 16
"""How many tokens of a grammar are followed. An engine compiles what its neuron sends it in its own
process, so a worker does the same before: over the same tokens, with the same limits, on half the
stack, and with the first masks, which are the dearest: states are computed in them."""

_tokenizers: dict[str, LLTokenizer] = {}


def keep_tokenizer(facts: jobs.TokenizerFacts) -> None:
    _tokenizers[facts.digest] = LLTokenizer(
        TokenizerWrapper(_Vocabulary(facts)), eos_token=facts.end_token_ids or None
    )
    release_freed_memory()


def forget_tokenizers_but(digests: Iterable[str]) -> None:
    for digest in _tokenizers.keys() - digests:
        del _tokenizers[digest]


class _Vocabulary:
    """A tokenizer for ``TokenizerWrapper``. Its texts become tokens greedily: the model's own
    merges would need its whole tokenizer, and decide nothing about what compiles."""

    bos_token_id = None

    def __init__(self, facts: jobs.TokenizerFacts) -> None:
        self.tokens = facts.tokens
        self.special_token_ids = facts.special_token_ids
        self.eos_token_id = facts.end_token_ids[0] if facts.end_token_ids else 0
        self._digest = facts.digest

    def __call__(self, text: bytes | str) -> list[int]:
        known = _tokenizers.get(self._digest)
        if known is None:  # the wrapper tries whether it takes bytes
            return []
        return list(known.greedy_tokenize(text if isinstance(text, str) else text.decode()))


def trial_problem(grammar: str, digest: str) -> str | None:
    """Why an engine could not compile ``grammar``, or not begin with it; ``None`` where it can, or
    where there is no tokenizer of that digest to try it with. What goes wrong after the first token
    depends on the tokens, and is the engine's to report: here it must only not end the process."""
    tokenizer = _tokenizers.get(digest)
    if tokenizer is None:
        return None
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    problem: str | None = None
    choice = random.Random(grammar)
    for index in range(NUM_TOKENS):
        token_id = _any_allowed(matcher, tokenizer, choice)
        if matcher.is_error() and index == 0:
            problem = one_line(matcher.get_error())
        if token_id is None or not matcher.consume_token(token_id):
            break
    return problem


def _any_allowed(matcher: LLMatcher, tokenizer: LLTokenizer, choice: random.Random) -> int | None:
    """A token that may come next and is not an end; ``None``: none is, or the grammar broke."""
    if matcher.is_error() or matcher.is_stopped():
        return None
    bias = matcher.compute_logit_bias()
    for start in (choice.randrange(len(bias)), 0):
        token_id = bias.find(ALLOWED, start)
        while token_id in tokenizer.eos_tokens:
            token_id = bias.find(ALLOWED, token_id + 1)
        if token_id >= 0 and not matcher.is_error():
            return token_id
    return None


ALLOWED = b"\xc8"
"""How ``compute_logit_bias`` marks a token that may come next."""
