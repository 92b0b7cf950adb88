"""The tool-call format of a model, inferred from its template."""

from __future__ import annotations

from inference.text.tool_calls import find_tool_format
from tests.cases import each_case
from tests.inference.text.tool_calls.conftest import Vocabulary

TOOLS = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
TEMPLATES = {
    "hermes": TOOLS + '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>',
    "qwen_coder": TOOLS + "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>",
    "llama3": TOOLS
    + 'Respond in the format {"name": …, "parameters": dictionary of argument name}',
    "mistral": TOOLS + "[TOOL_CALLS][{{ call | tojson }}]",
    "mistral_named": TOOLS + "'[TOOL_CALLS]' + name + '[ARGS]' + arguments",
    "glm": TOOLS + "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key>\n<arg_value>",
    "glm_47": TOOLS + "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key><arg_value>",
    "deepseek": TOOLS + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>```json",  # noqa: RUF001
    "deepseek_v31": TOOLS + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",  # noqa: RUF001
    "dsml": TOOLS + "<｜DSML｜function_calls>\n<｜DSML｜invoke",  # noqa: RUF001
    "dsml_v4": TOOLS + "<｜DSML｜tool_calls>\n<｜DSML｜invoke",  # noqa: RUF001
    "kimi": TOOLS + "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}",
    "granite": TOOLS + "respond with <|tool_call|> followed by a JSON list of tools used",
    "hunyuan": TOOLS + "<tool_calls>{{ calls }}</tool_calls>",
    "nemotron": TOOLS + "<TOOLCALL>[{{ call }}]</TOOLCALL>",
    "command_r": TOOLS + '<|START_ACTION|>[{"tool_call_id": "0", "tool_name":',
    "functools": TOOLS + "functools[{{ call }}]",
    "lfm2": TOOLS + "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
    "minimax": TOOLS + '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">',
    "seed": TOOLS + "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>",
    "function_gemma": TOOLS + "<start_function_call>call:{{ name }}",
    "gemma_4": TOOLS + "<|tool_call>call:{{ name }}",
    "harmony": TOOLS + "<|start|>assistant<|channel|>commentary json<|message|>",
}
GEMMA_3 = (
    "You MUST put it in the format of [func_name1(params_name1=params_value1)]",
    'You MUST put it in the format of {"name": function name, "parameters": dictionary of '
    "argument name and its value}",
)
"""The prompt of Gemma 3's documentation."""
ALL = [*TEMPLATES.items(), *(("llama3", TOOLS + prompt) for prompt in GEMMA_3)]


@each_case(("name", "template"), ALL)
def test_a_template_shows_its_format(
    name: str, template: str, vocabularies: dict[str, Vocabulary]
) -> None:
    found = find_tool_format(template, vocabularies["spelled"].text)
    assert found is not None
    assert found.name == name


@each_case("template", [None, "{{ messages[0].content }}"])
def test_other_formats_are_not_guessed(
    template: str | None, vocabularies: dict[str, Vocabulary]
) -> None:
    for vocabulary in vocabularies.values():
        assert find_tool_format(template, vocabulary.text) is None


def test_a_tokenizer_shows_what_its_template_does_not(
    vocabularies: dict[str, Vocabulary],
) -> None:
    assert find_tool_format(TOOLS, vocabularies["spelled"].text) is None
    found = find_tool_format(TOOLS, vocabularies["special"].text)
    assert found is not None
    assert found.name == "mistral"


def test_only_special_markers_need_to_be_shown(vocabularies: dict[str, Vocabulary]) -> None:
    found = find_tool_format(TEMPLATES["hermes"], vocabularies["special"].text)
    assert found is not None
    special = vocabularies["special"]
    markers = special.encode("<tool_call></tool_call>")
    assert found.shown_token_ids(special.text) == frozenset(markers)
    assert found.shown_token_ids(vocabularies["added"].text) == frozenset()
    assert found.shown_token_ids(vocabularies["spelled"].text) == frozenset()
