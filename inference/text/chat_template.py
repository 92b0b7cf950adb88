"""Renders a conversation to prompt text with the model's Jinja chat template.

The environment imitates transformers', which templates are written for: importing transformers
takes a second and tens of megabytes of each process that renders. A test compares both.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, NoReturn

import msgspec
from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from inference.protocol.generation import (
    THINKING_SWITCHES,
    ChatInput,
    ChatMessage,
    ToolDefinition,
)
from inference.text.errors import TemplateRenderError
from inference.text.template_sources import TemplateSources
from inference.text.turns import Turn, arrangements, plain_turns

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        "conversations",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "return_assistant_tokens_mask",
        "continue_final_message",
        "add_generation_prompt",
    }
)
"""Arguments of transformers' renderer, forbidden in a client's template_kwargs."""

ANY_TURN = ChatMessage(role="user", content="Hello")
TOOLS_INTRODUCTION = (
    "Answer with a call of a tool, as JSON with its name and its arguments. The tools:\n"
)


@dataclass(frozen=True, slots=True)
class Rendering:
    text: str
    loses_system_turns: bool = False


class ChatTemplate:
    """Has no limits of time and output, so it is for the workers of ``inference.sandbox``."""

    def __init__(self, sources: TemplateSources, special_tokens: Mapping[str, str]) -> None:
        self.sources = sources
        self._special_tokens = dict(special_tokens)

    def render(self, chat: ChatInput) -> Rendering:
        """The prompt, special tokens (bos too) written out. A model without a template gets ChatML.

        Tools of which a call is forced are described in a system turn where the template ignores
        tools. Raises ``TemplateRenderError`` for a chat that the template refuses or cannot
        express, and ``MemoryError``.
        """
        _check_kwargs(chat.template_kwargs)
        if self.sources.for_tools is None and chat.tool_choice.mode == "required":
            chat = _with_described_tools(chat)
        source = self._source(chat)
        if source is None:
            if _has_images(chat):
                raise TemplateRenderError("this model has no chat template, which images need")
            return Rendering(self._render_source(CHATML, plain_turns(chat.messages), chat))
        rendering = self._render_arranged(source, chat)
        if isinstance(rendering, Exception):
            how = self._how_it_fails(source, chat)
            raise TemplateRenderError(f"the model's chat template {how}: {rendering}")
        if self.sources.for_tools is None and not _keeps_results(rendering.text, chat.messages):
            raise TemplateRenderError("this model's chat template drops what a tool returned")
        return rendering

    def _source(self, chat: ChatInput) -> str | None:
        if not _is_about_tools(chat):
            return self.sources.default
        source = self.sources.for_tools
        if source is None and chat.rendered_tools:
            message = "this model's chat template has no place for tools"
            raise TemplateRenderError(message, "tools")
        source = source or self.sources.default
        has_calls = any(message.tool_calls for message in chat.messages)
        if source is None or (has_calls and "tool_calls" not in source):
            raise TemplateRenderError("this model's chat template has no place for tool calls")
        return source

    def _render_arranged(self, source: str, chat: ChatInput) -> Rendering | Exception:
        refusal: Exception | None = None
        first_rendered: str | None = None
        for turns in arrangements(chat.messages):
            try:
                rendered = self._render_source(source, turns, chat)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - a template comes with the model
                refusal = refusal or error
                continue
            if _keeps_system_texts(rendered, chat.messages):
                return Rendering(rendered)
            first_rendered = first_rendered or rendered
        if first_rendered is not None:
            return Rendering(first_rendered, loses_system_turns=True)
        assert refusal is not None
        return refusal

    def _how_it_fails(self, source: str, chat: ChatInput) -> str:
        messages = chat.messages
        if not self._renders(source, chat, [ANY_TURN]):
            return "failed"
        ends = _whole_ends(messages)
        failing = bisect_left(
            ends, True, key=lambda end: not self._renders(source, chat, messages[:end])
        )
        num_rendered = ends[failing - 1] if failing else 0
        roles = [message.role for message in messages if message.role != "system"]
        before = sum(message.role != "system" for message in messages[:num_rendered])
        if before == len(roles):
            return "fails with a system turn"
        after = f" after {roles[before - 1]}" if before else ""
        return f"fails at turn {before + 1} of {len(roles)} ({roles[before]}{after})"

    def _renders(self, source: str, chat: ChatInput, messages: list[ChatMessage]) -> bool:
        chat = msgspec.structs.replace(chat, messages=messages)
        return isinstance(self._render_arranged(source, chat), Rendering)

    def _render_source(self, source: str, turns: list[Turn], chat: ChatInput) -> str:
        return compiled(source).render(
            messages=turns,
            tools=[_tool(tool) for tool in chat.rendered_tools] or None,
            documents=None,
            add_generation_prompt=chat.adds_generation_prompt,
            **{**self._special_tokens, **_template_kwargs(chat)},
        )


def _with_described_tools(chat: ChatInput) -> ChatInput:
    """A grammar holds the answer to a call, so the model need not know how one is written."""
    callable_ = [tool for tool in chat.tools if chat.tool_choice.name in (None, tool.name)]
    described_tools = "\n".join(json.dumps(_tool(tool)["function"]) for tool in callable_)
    num_first = next(
        (index for index, one in enumerate(chat.messages) if one.role != "system"),
        len(chat.messages),
    )
    described = ChatMessage(role="system", content=TOOLS_INTRODUCTION + described_tools)
    messages = [*chat.messages[:num_first], described, *chat.messages[num_first:]]
    return msgspec.structs.replace(chat, tools=[], messages=messages)


def _template_kwargs(chat: ChatInput) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    thinking = chat.wants_thinking
    if thinking is not None:
        kwargs |= dict.fromkeys(THINKING_SWITCHES, thinking)
    if chat.reasoning_effort is not None:
        kwargs["reasoning_effort"] = chat.reasoning_effort
    return kwargs | chat.template_kwargs


def _check_kwargs(kwargs: Mapping[str, Any]) -> None:
    if clash := sorted(RESERVED_TEMPLATE_KWARGS & kwargs.keys()):
        raise TemplateRenderError(f"template_kwargs may not set {', '.join(clash)}")


def _whole_ends(messages: list[ChatMessage]) -> list[int]:
    """Lengths of beginnings that have a user's turn and no call without its results at the end."""
    ends = []
    has_user = False
    for end, (message, following) in enumerate(pairwise(messages), start=1):
        has_user = has_user or message.role == "user"
        awaits_result = following.role == "tool" and (message.tool_calls or message.role == "tool")
        if has_user and not awaits_result:
            ends.append(end)
    return ends


def _is_about_tools(chat: ChatInput) -> bool:
    in_history = any(message.tool_calls or message.role == "tool" for message in chat.messages)
    return in_history or bool(chat.rendered_tools)


def _has_images(chat: ChatInput) -> bool:
    return any(message.images for message in chat.messages)


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _keeps_results(rendered: str, messages: list[ChatMessage]) -> bool:
    """A template without tool support may leave out turns of a role that it does not know."""
    results = [message for message in messages if message.role == "tool"]
    return _holds(rendered, (text for message in results for text in _texts(message)))


def _texts(message: ChatMessage) -> list[str]:
    parts = message.parts if message.images else [message.content or ""]
    return [part for part in parts if isinstance(part, str)]


def _keeps_system_texts(rendered: str, messages: list[ChatMessage]) -> bool:
    return _holds(rendered, (one.content or "" for one in messages if one.role == "system"))


def _holds(rendered: str, texts: Iterable[str]) -> bool:
    position = 0
    for text in map(str.strip, texts):
        found = rendered.find(text, position)
        if found < 0:
            return False
        position = found + len(text)
    return True


MAX_COMPILED = 128


@lru_cache(maxsize=MAX_COMPILED)
def compiled(source: str) -> Template:
    """Raises ``jinja2.TemplateError``."""
    return _environment().from_string(source)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_MakesDicts(),
        namespace=_PublicNamespace,
    )
    return environment


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's words, for training. Here it renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _PublicNamespace(Namespace):
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *others = args
        attributes: dict[str, Any] = dict(*others, **kwargs)
        for name in attributes:
            _check_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template may not store {name!r} on a namespace")


class _MakesDicts:
    """``dict`` itself has attributes that a template could leave the sandbox by."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
