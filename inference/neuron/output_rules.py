"""What a request demands of its answer, as the grammar that the engine is told.

    tools auto            free text, unless strict tools or single calls ask for a grammar
    tools required        calls                        response format            JSON
    tools auto + format   calls | JSON                 tools required + format    calls

Schemas are checked here, before the engine hears of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from inference.neuron.errors import RequestRefusedError, invalid_schema
from inference.neuron.model_text import ModelText
from inference.protocol.events import Failure
from inference.protocol.generation import (
    ChatInput,
    GenerationRequest,
    OutputFormat,
    ToolChoice,
    ToolDefinition,
)
from inference.protocol.sampling import Grammar
from inference.text.bare_calls import ARGUMENTS_KEYS, bare_call_part
from inference.text.chat_template import rendered_tools, wants_thinking
from inference.text.compiling import calls_part, grammar_text, json_part, problem_of
from inference.text.errors import GrammarTextError, SchemaError
from inference.text.grammars import Thinking, answer_grammar
from inference.text.schemas import checked_schema, leniently_checked
from inference.text.text_formats import text_part
from inference.text.tool_calls.errors import UnsupportedSchemaError


def request_grammar(
    request: GenerationRequest, text: ModelText, *, starts_thinking: bool = False
) -> Grammar | None:
    """Raises ``RequestRefusedError`` for schemas and tools that cannot be enforced."""
    parts: list[dict[str, Any]] = []
    thinking, must_call, num_calls = Thinking.NONE, False, 0
    if isinstance(request.input, ChatInput):
        parts += _call_parts(request.input, request.output_format, text)
        num_calls = len(parts)
        thinking = _thinking(request.input, text, starts_thinking)
        must_call = request.input.tool_choice.mode == "required"
    if request.output_format is not None and not must_call:
        parts.append(_format_part(request.output_format))
    if not parts:
        return None
    if text.report.grammar_problem is not None:
        message = f"this model's answers cannot be held to a grammar: {text.report.grammar_problem}"
        raise RequestRefusedError(Failure(code="unsupported_parameter", message=message))
    grammar = answer_grammar(
        parts,
        thinking=thinking,
        markers=text.markers,
        end_token_ids=text.report.eos_token_ids,
        num_calls=num_calls,
    )
    problem = problem_of(grammar.text)
    if problem is not None:
        raise RequestRefusedError(Failure(code="invalid_grammar", message=problem))
    return grammar


def _thinking(chat: ChatInput, text: ModelText, starts_thinking: bool) -> Thinking:
    """A model that was told not to think is held to it, unless its template opens the block or it
    cannot be told."""
    if starts_thinking:
        return Thinking.OPENED
    if text.markers is not None and text.markers.channels is not None:
        return Thinking.POSSIBLE
    if text.markers is None or wants_thinking(chat) is False:
        return Thinking.NONE
    return Thinking.POSSIBLE


def _format_part(output_format: OutputFormat) -> dict[str, Any]:
    if not output_format.is_json:
        return _text_part(output_format)
    schema = output_format.schema
    if schema is not None:
        try:
            schema = checked_schema(schema)
        except SchemaError as error:
            failure = invalid_schema(str(error), error.path(output_format.path))
            raise RequestRefusedError(failure) from error
    return json_part(schema)


def _text_part(output_format: OutputFormat) -> dict[str, Any]:
    """Checked by itself, so that what is wrong with it is told of its own place."""
    try:
        part = text_part(output_format)
        problem = problem_of(grammar_text([part]))
    except GrammarTextError as error:
        problem = str(error)
    if problem is not None:
        raise RequestRefusedError(
            Failure(code="invalid_grammar", message=problem, param=output_format.path)
        )
    return part


def _call_parts(
    chat: ChatInput, output_format: OutputFormat | None, text: ModelText
) -> list[dict[str, Any]]:
    """The calls that the answer must or may be; empty: nothing is enforced."""
    tools, choice = rendered_tools(chat), chat.tool_choice
    if choice.mode == "required":
        _check_choice(choice, tools)
    if not tools:
        return []
    tool_format = text.tool_format_of(chat)
    if tool_format is None:
        message = (
            "how this model writes tool calls is not known here: only a tool_choice that forces a "
            "call can be honoured"
        )
        failure = Failure(code="unsupported_parameter", message=message, param="tools")
        raise RequestRefusedError(failure)
    key = ARGUMENTS_KEYS.get(tool_format.name)
    may_be_json = output_format is not None and choice.mode == "auto"
    if may_be_json:
        choice = ToolChoice(mode="required")
    tools = [_checked_tool(tool, is_forced=choice.mode == "required") for tool in tools]
    if may_be_json and key is not None:
        return [bare_call_part(tool, key) for tool in tools]
    try:
        lark = tool_format.grammar(
            tools, choice, parallel=chat.parallel_tool_calls, tokenizer=text.tokenizer
        )
    except UnsupportedSchemaError as error:
        raise RequestRefusedError(invalid_schema(str(error), error.param)) from error
    return [] if lark is None else [calls_part(lark)]


def _check_choice(choice: ToolChoice, tools: Sequence[ToolDefinition]) -> None:
    if not tools:
        message = "a call is required and there are no tools"
    elif choice.name not in {None, *(tool.name for tool in tools)}:
        message = f"there is no tool named {choice.name!r}"
    else:
        return
    failure = Failure(code="invalid_value", message=message, param="tool_choice")
    raise RequestRefusedError(failure)


def _checked_tool(tool: ToolDefinition, *, is_forced: bool) -> ToolDefinition:
    """A strict tool's schema must be enforced whole; another one's as far as it can be, and only
    where a call is forced."""
    if tool.parameters is None:
        return tool
    try:
        if tool.strict:
            return msgspec.structs.replace(tool, parameters=checked_schema(tool.parameters))
        if is_forced:
            return msgspec.structs.replace(tool, parameters=leniently_checked(tool.parameters))
    except SchemaError as error:
        failure = invalid_schema(str(error), error.path(tool.path))
        raise RequestRefusedError(failure) from error
    return tool
