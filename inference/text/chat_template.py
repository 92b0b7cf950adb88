"""Conversations to the prompt text that a model was trained on, through its Jinja chat template.

Owns where a template is found and what is tried when it refuses. The sandbox, its filters and
globals are transformers' own, so a template sees here what it sees there.

    spec override > chat_template.jinja > chat_template.json > tokenizer_config.json > ChatML
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from inference.protocol.generation import ChatInput, ChatMessage, ToolCall, ToolDefinition
from inference.text.errors import TemplateRenderError
from inference.text.tokenizer import read_json_object

log = logging.getLogger(__name__)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' }}"
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
"""What a client's template_kwargs may not be called: the renderer's own arguments."""

Turn = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TemplateSources:
    """``tool_use`` is the second template of models that publish one for chats with tools."""

    default: str | None
    tool_use: str | None = None


def find_templates(directory: Path, override: str | None) -> TemplateSources:
    """Raises ``TokenizerFilesError`` when a file that should hold a template is broken."""
    if override is not None:
        return TemplateSources(override)
    jinja_file = directory / "chat_template.jinja"
    if jinja_file.is_file():
        return TemplateSources(jinja_file.read_text(encoding="utf-8"))
    for name in ("chat_template.json", "tokenizer_config.json"):
        declared = read_json_object(directory / name).get("chat_template")
        if declared is not None:
            return _declared_templates(declared)
    return TemplateSources(None)


def _declared_templates(declared: object) -> TemplateSources:
    """A string, or a list of {name, template}."""
    if isinstance(declared, str):
        return TemplateSources(declared)
    named = {
        entry["name"]: entry["template"]
        for entry in (declared if isinstance(declared, list) else [])
        if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
    }
    return TemplateSources(named.get("default"), named.get("tool_use"))


class ChatTemplate:
    """Stateless; any thread may render. A template is compiled once per process."""

    def __init__(self, sources: TemplateSources, special_tokens: Mapping[str, str]) -> None:
        self._sources = sources
        self._special_tokens = dict(special_tokens)

    def render(self, chat: ChatInput) -> str:
        """The prompt up to where the assistant speaks, special tokens (bos too) written out.

        Raises ``TemplateRenderError`` for a chat with tools that the template cannot express;
        without tools a refusing template is replaced by ChatML, which the log tells.
        """
        _check_kwargs(chat.template_kwargs)
        source = self._sources.default
        if chat.tools:
            source = self._sources.tool_use or source
            if source is None or "tools" not in source:
                raise TemplateRenderError("this model's chat template has no place for tools")
        if source is None:
            log.warning("the model has no chat template: rendering plain ChatML")
            return self._render_source(CHATML, _turns(chat.messages), chat)
        try:
            return self._render_arranged(source, chat)
        except Exception as error:  # templates are foreign code and may raise anything
            if chat.tools or any(message.tool_calls for message in chat.messages):
                raise TemplateRenderError(f"the model's chat template failed: {error}") from error
            log.warning("chat template failed (%s): rendering plain ChatML", error)
            return self._render_source(CHATML, _turns(chat.messages), chat)

    def _render_arranged(self, source: str, chat: ChatInput) -> str:
        """Tries arrangements of the system turns until one renders and loses none of them."""
        refusal: Exception | None = None
        first_rendered: str | None = None
        for turns in _arrangements(_turns(chat.messages)):
            try:
                rendered = self._render_source(source, turns, chat)
            except Exception as error:  # noqa: BLE001 - raised again below if nothing renders
                refusal = refusal or error
                continue
            if _keeps_system_texts(rendered, chat.messages):
                return rendered
            first_rendered = first_rendered or rendered
        if first_rendered is not None:
            log.warning("the chat template rewrites or drops system turns")
            return first_rendered
        assert refusal is not None
        raise refusal

    def _render_source(self, source: str, turns: list[Turn], chat: ChatInput) -> str:
        rendered: Any = render_jinja_template(
            conversations=[turns],
            tools=[_tool(tool) for tool in chat.tools] or None,
            chat_template=source,
            add_generation_prompt=True,
            **{**self._special_tokens, **chat.template_kwargs},
        )
        prompts, _ = rendered
        return str(prompts[0])


def _check_kwargs(kwargs: Mapping[str, Any]) -> None:
    if clash := sorted(RESERVED_TEMPLATE_KWARGS & kwargs.keys()):
        raise TemplateRenderError(f"template_kwargs may not set {', '.join(clash)}")


def _turns(messages: list[ChatMessage]) -> list[Turn]:
    return [_turn(message) for message in messages]


def _turn(message: ChatMessage) -> Turn:
    """Absent fields are left out, as templates test for their presence."""
    turn: Turn = {"role": message.role, "content": message.content or ""}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.reasoning is not None:
        turn["reasoning_content"] = message.reasoning
    return turn


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _call(call: ToolCall) -> dict[str, Any]:
    """The API carries arguments as JSON text; templates iterate them or write them with
    ``tojson``. What is not JSON stays text."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _arrangements(turns: list[Turn]) -> Iterator[list[Turn]]:
    """As sent; all system turns as one first turn; their text before the first user turn's."""
    yield turns
    systems = [turn for turn in turns if turn["role"] == "system"]
    if not systems:
        return
    others = [turn for turn in turns if turn["role"] != "system"]
    text = "\n\n".join(turn["content"] for turn in systems)
    yield [{"role": "system", "content": text}, *others]
    if others and others[0]["role"] == "user":
        first = {**others[0], "content": f"{text}\n\n{others[0]['content']}"}
        yield [first, *others[1:]]


def _keeps_system_texts(rendered: str, messages: list[ChatMessage]) -> bool:
    return all(
        (message.content or "").strip() in rendered
        for message in messages
        if message.role == "system"
    )
