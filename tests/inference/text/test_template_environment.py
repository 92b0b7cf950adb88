"""Which template a model's chats are rendered by; it sees here what it sees in transformers, which
has the original of the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jinja2 import Environment
from transformers.utils import chat_template_utils

from inference.protocol.generation import ChatInput, ChatMessage, ToolCall, ToolDefinition
from inference.text.chat_template import CHATML, ChatTemplate, compiled
from inference.text.errors import TokenizerFilesError
from inference.text.template_sources import MAX_TEMPLATE_BYTES, find_templates
from inference.text.turns import plain_turns
from tests.cases import each_case
from tests.inference.text.family_templates import LLAMA, MISTRAL, QWEN

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = ToolCall(id="abcdefghi", name="weather", arguments='{"city": "Köln"}')
TURNS = plain_turns(
    [
        ChatMessage(role="user", content="Regnet es in <Köln> & Bonn?"),
        ChatMessage(role="assistant", reasoning="I must look.", tool_calls=[CALL]),
        ChatMessage(role="tool", tool_call_id=CALL.id, content='{"rain": true}'),
        ChatMessage(role="assistant", content="Ja."),
        ChatMessage(role="user", content="Danke."),
    ]
)
FEATURES = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "{{ messages }}{{ tools }}{{ documents }}{{ bos_token }}",
    "{{ messages | tojson }}|{{ tools | tojson(indent=2, sort_keys=True) }}"
    "|{{ messages[0].content | tojson(ensure_ascii=True) }}"
    "|{{ tools | tojson(separators=(',', ':')) }}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
    "{% if loop.index0 == 3 %}{% break %}{% endif %}{{ m.role }} {% endfor %}",
    "{% set found = namespace(role='', self=3) %}{{ found.self }}"
    "{% for m in messages %}{% set found.role = m.role %}{% endfor %}{{ found.role }}",
    "{{ dict(a=1) }}{{ dict([('c', 3)]) }}{{ dict.fromkeys(['d'], 4) }}",
    "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}\n"
    "{{ m.role }}{{ x }}{% endgeneration %}{% endfor %}{{ x }}",
    "{{ strftime_now('%Y')[:2] }}{{ nothing }}{{ messages[9] }}{{ nothing is defined }}",
    "{{ messages[0].content.upper().split(' ')[:2] }}{{ messages[1].items() | list }}",
]
REFUSED = [
    "{{ raise_exception('roles must alternate') }}",
    "{% for %}",
    "{{ nothing.at_all }}",
    # No way out by a class or by dict, no change of the turns, and no private names.
    "{{ ''.__class__.__mro__ }}",
    "{{ dict.mro() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ namespace(_x=1) }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    # No break out of a generation.
    "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
]


def _ours(source: str, **kwargs: Any) -> str:
    return compiled(source).render(messages=TURNS, documents=None, **kwargs)


def _theirs(source: str, **kwargs: Any) -> str:
    rendered: Any = chat_template_utils.render_jinja_template(
        conversations=[TURNS], chat_template=source, **kwargs
    )
    return str(rendered[0][0])


@each_case("source", [*FEATURES, QWEN, LLAMA, MISTRAL, CHATML])
@each_case("tools", [TOOLS, None])
def test_it_renders_as_transformers_does(source: str, tools: list[dict[str, Any]] | None) -> None:
    values = {"tools": tools, "add_generation_prompt": True, "bos_token": "<s>"}
    assert _ours(source, **values) == _theirs(source, **values)


@each_case("source", REFUSED)
def test_it_refuses_as_transformers_does(source: str) -> None:
    refusals = []
    for render in (_ours, _theirs):
        with pytest.raises(Exception) as caught:
            render(source, tools=None, add_generation_prompt=True)
        refusals.append(type(caught.value))
    assert refusals[0] is refusals[1]


def test_it_has_the_names_that_transformers_has() -> None:
    ours: Environment = compiled("").environment
    theirs: Environment = chat_template_utils._compile_jinja_template("").environment
    for kind in ("filters", "tests", "globals"):
        assert getattr(ours, kind).keys() == getattr(theirs, kind).keys()
    for option in ("trim_blocks", "lstrip_blocks", "autoescape", "keep_trailing_newline"):
        assert getattr(ours, option) == getattr(theirs, option)
    assert ours.undefined is theirs.undefined
    ours_tags, theirs_tags = (
        {tag for one in environment.extensions.values() for tag in one.tags}
        for environment in (ours, theirs)
    )
    assert ours_tags == theirs_tags


CHAT = ChatInput(messages=[ChatMessage(role="user", content="Hello.")])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "chat_template.jinja").write_text("own: {{ messages[0].content }}")
    return directory


def rendered(model: Path, choice: str | None) -> str:
    return ChatTemplate(find_templates(model, choice), {}).render(CHAT).text


def test_the_operators_file_comes_first_then_the_models_files(model: Path, tmp_path: Path) -> None:
    """A template for tools is a named one or a further file."""
    further = model / "additional_chat_templates" / "tool_use.jinja"
    further.parent.mkdir()
    further.write_text("{{ tools }}")
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools }}"}]
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert rendered(model, None) == "own: Hello."
    sources = find_templates(model, None)
    assert (sources.default, sources.for_tools) == ("own: {{ messages[0].content }}", "{{ tools }}")
    further.unlink()
    (model / "chat_template.jinja").unlink()
    assert rendered(model, None) == "json"
    (model / "chat_template.json").unlink()
    assert rendered(model, None) == "d"
    with_tools = msgspec.structs.replace(CHAT, tools=[ToolDefinition(name="f", path="tools[0]")])
    template = ChatTemplate(find_templates(model, None), {})
    assert "function" in template.render(with_tools).text
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert rendered(model, None) == "config"
    file = tmp_path / "mine.jinja"
    file.write_text("mine: {{ messages[0].content }}")
    assert rendered(model, f"file:{file}") == "mine: Hello."
    assert find_templates(model, "none").default is None
    assert rendered(model, "none").startswith("<|im_start|>user\nHello.<|im_end|>")


def test_a_file_or_a_choice_that_cannot_be_used_is_named(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    for content, problem in (
        (None, "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b" " * (MAX_TEMPLATE_BYTES + 1), "larger than 1048576 bytes"),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(TokenizerFilesError, match=f"{file}.*{problem}"):
            find_templates(model, f"file:{file}")
    with pytest.raises(TokenizerFilesError, match="neither a file nor none"):
        find_templates(model, "chatml")
    (model / "chat_template.jinja").unlink()
    (model / "chat_template.json").write_text("[")
    with pytest.raises(TokenizerFilesError, match=r"chat_template\.json"):
        find_templates(model, None)
