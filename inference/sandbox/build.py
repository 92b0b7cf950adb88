"""Builds the grammar of an answer, in a worker: its schemas are checked, each by itself, so that a
refusal names its place, and the whole is compiled.

    tools auto            free text, unless strict tools or single calls ask for a grammar
    tools required        calls                        response format            JSON
    tools auto + format   calls | JSON                 tools required + format    calls

A strict schema that cannot be enforced is refused. Another one loses the place that cannot be,
which is named with the grammar.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from inference.garbage import release_freed_memory
from inference.protocol.generation import OutputFormat, ToolDefinition
from inference.sandbox.jobs import BuildGrammar, Built, LossReason, TokenizerFacts
from inference.text.errors import (
    GrammarRefusedError,
    SchemaError,
    SchemaRefusedError,
    UnsupportedSchemaError,
    path_of,
)
from inference.text.grammars import (
    TOO_DEEP,
    Thinking,
    answer_grammar,
    bare_call_part,
    grammar_text,
    json_part,
    text_part,
)
from inference.text.schema_check import (
    LIMITS,
    checked_schema,
    find_culprit,
    find_problem,
    is_panic,
    leniently_checked,
    one_line,
)
from inference.text.schema_enforced import original_steps
from inference.text.schema_places import Schema, left_out
from inference.text.tool_calls import FORMATS


def build_grammar(job: BuildGrammar) -> Built:
    """Raises ``GrammarRefusedError``."""
    schemas = _Schemas(job.tokenizer)
    parts = _call_parts(job, schemas)
    num_calls = len(parts)
    if job.output_format is not None:
        parts.append(_format_part(job.output_format, schemas))
    grammar = answer_grammar(
        parts,
        thinking=Thinking(job.thinking),
        markers=job.markers,
        end_token_ids=job.end_token_ids,
        num_calls=num_calls,
    )
    with _refused_panics(job.path):
        problem = find_problem(grammar.text) or trial_problem(grammar.text, job.tokenizer)
    if problem is not None:
        raise GrammarRefusedError(problem, job.path)
    return Built(grammar=grammar, not_enforced=schemas.not_enforced)


@contextmanager
def _refused_panics(path: str | None) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        message = f"it cannot be compiled: the compiler {LossReason.CRASH}"
        raise GrammarRefusedError(message, path) from None


class _Schemas:
    def __init__(self, tokenizer: str) -> None:
        self._tokenizer = tokenizer
        self.not_enforced: list[str] = []

    def checked(self, schema: Any, path: str, *, strict: bool) -> Any:
        try:
            with _refused_panics(path):
                if strict:
                    return self._enforceable(schema)
                enforced, places = leniently_checked(schema, self._enforceable)
        except SchemaError as error:
            raise SchemaRefusedError(str(error), error.path(path)) from error
        except RecursionError:
            raise SchemaRefusedError(TOO_DEEP, path) from None
        self.not_enforced += [path_of(path, steps) for steps in places]
        return enforced

    def _enforceable(self, sent: Schema) -> Schema:
        schema = checked_schema(sent)
        find = partial(trial_problem, digest=self._tokenizer)
        problem = find(grammar_text([json_part(schema)]))
        if problem is not None:
            raise SchemaError(original_steps(sent, find_culprit(schema, problem, find)), problem)
        return schema

    def checked_tool(self, tool: ToolDefinition) -> ToolDefinition:
        if tool.parameters is None:
            return tool
        parameters = self.checked(tool.parameters, tool.path, strict=tool.strict)
        return msgspec.structs.replace(tool, parameters=parameters)

    def without(
        self, tools: Sequence[ToolDefinition], error: UnsupportedSchemaError
    ) -> list[ToolDefinition]:
        tool, steps = error.tool, error.steps
        if tool.strict:
            raise SchemaRefusedError(str(error), error.param) from error
        while (left := left_out(tool.parameters, steps))[0] == tool.parameters:
            steps = steps[:-1]  # what it refers to is refused
        parameters, steps = left
        self.not_enforced.append(path_of(tool.path, steps))
        changed = msgspec.structs.replace(tool, parameters=parameters)
        return [changed if one is tool else one for one in tools]


def _format_part(output_format: OutputFormat, schemas: _Schemas) -> dict[str, Any]:
    if output_format.is_json:
        schema, path = output_format.schema, output_format.path
        if schema is not None:
            schema = schemas.checked(schema, path, strict=output_format.strict)
        return json_part(schema)
    return text_part(output_format)


def _call_parts(job: BuildGrammar, schemas: _Schemas) -> list[dict[str, Any]]:
    if not job.tools:
        return []
    is_bare = job.output_format is not None and job.tool_format == "llama3"
    is_forced = job.choice.mode == "required" and not is_bare
    tools = [schemas.checked_tool(tool) if tool.strict or is_forced else tool for tool in job.tools]
    if is_bare:
        return [bare_call_part(tool) for tool in tools]
    while True:
        try:
            lark = FORMATS[job.tool_format].grammar(
                tools, job.choice, parallel=job.parallel, marker_ids=job.marker_ids
            )
        except UnsupportedSchemaError as error:
            tools = schemas.without(tools, error)
        else:
            assert lark is not None, "nothing to enforce"
            return [{"lark_grammar": lark}]


NUM_TOKENS = 16
"""Tokens of a grammar that are tried. An engine compiles it in its own process, so a worker does
the same before: over the same tokens, with the same limits, on half the stack."""
ALLOWED = b"\xc8"
"""How ``compute_logit_bias`` marks a token that may come next."""

_tokenizers: dict[str, LLTokenizer] = {}


def keep_tokenizer(facts: TokenizerFacts) -> None:
    _tokenizers[facts.digest] = LLTokenizer(
        TokenizerWrapper(_Vocabulary(facts)), eos_token=facts.end_token_ids or None
    )
    release_freed_memory()


def forget_tokenizers_but(digests: Iterable[str]) -> None:
    for digest in _tokenizers.keys() - digests:
        del _tokenizers[digest]


class _Vocabulary:
    """Tokenizes greedily: the model's own merges decide nothing about what compiles."""

    bos_token_id = None

    def __init__(self, facts: TokenizerFacts) -> None:
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
    """Why an engine could not compile ``grammar`` or begin with it. Later failures depend on the
    tokens and are the engine's to report; here they must only not end the process."""
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
