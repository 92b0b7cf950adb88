"""The tool-call format of a model, inferred from its template."""

from __future__ import annotations

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.tool_calls import find_tool_format
from inference.text.tool_calls.json_formats import MistralFormat
from inference.text.tool_calls.python_formats import Llama3Format
from tests.cases import each_case
from tests.inference.text.tool_calls.conftest import Vocabulary

TOOLS = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
TEMPLATES = {
    "hermes": TOOLS + '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>',
    "qwen_coder": TOOLS + "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>",
    "llama3": TOOLS
    + 'Respond in the format {"name": …, "parameters": dictionary of argument name}',
    "mistral": TOOLS + "[TOOL_CALLS][{{ call | tojson }}]",
    "glm": TOOLS + "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key>\n<arg_value>",
    "deepseek": TOOLS + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",  # noqa: RUF001
    "dsml": TOOLS + "<｜DSML｜function_calls>\n<｜DSML｜invoke",  # noqa: RUF001
    "kimi": TOOLS + "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}",
    "granite": TOOLS + "respond with <|tool_call|> followed by a JSON list of tools used",
    "hunyuan": TOOLS + "<tool_calls>{{ calls }}</tool_calls>",
    "nemotron": TOOLS + "<TOOLCALL>[{{ call }}]</TOOLCALL>",
    "command_r": TOOLS + '<|START_ACTION|>[{"tool_call_id": "0", "tool_name":',
    "functools": TOOLS + "functools[{{ call }}]",
    "lfm2": TOOLS + "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
    "minimax": TOOLS + '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">',
    "seed": TOOLS + "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>",
    "gemma": TOOLS + "<start_function_call>call:{{ name }}",
    "harmony": TOOLS + "<|start|>assistant<|channel|>commentary json<|message|>",
}
GEMMA_3 = (
    "You MUST put it in the format of [func_name1(params_name1=params_value1)]",
    'You MUST put it in the format of {"name": function name, "parameters": dictionary of '
    "argument name and its value}",
)
"""The prompt of Gemma 3's documentation."""
UNKNOWN = {
    "no template": None,
    "no place for tools": "{{ messages[0].content }}",
}


@each_case("name", TEMPLATES)
def test_a_template_shows_its_format(name: str, vocabularies: dict[str, Vocabulary]) -> None:
    found = find_tool_format(TEMPLATES[name], vocabularies["spelled"].text)
    assert found is not None
    assert found.name == name


@each_case("prompt", GEMMA_3)
def test_gemma_3_writes_what_its_prompt_asks_for(
    prompt: str, vocabularies: dict[str, Vocabulary]
) -> None:
    found = find_tool_format(TOOLS + prompt, vocabularies["spelled"].text)
    assert isinstance(found, Llama3Format)


@each_case("template", [TEMPLATES["glm"], TEMPLATES["deepseek"] + "```json"])
def test_templates_show_which_of_two_forms(
    template: str, vocabularies: dict[str, Vocabulary]
) -> None:
    text = vocabularies["spelled"].text
    tools = [ToolDefinition(name="f", path="")]
    choice = ToolChoice(mode="required")
    both = (template, template.replace("```json", "").replace("</arg_key>\n", "</arg_key>"))
    grammars = [
        found.grammar(tools, choice, parallel=False, tokenizer=text)
        for one in both
        if (found := find_tool_format(one, text)) is not None
    ]
    assert len(set(grammars)) == len(both)


@each_case("name", UNKNOWN)
def test_other_formats_are_not_guessed(name: str, vocabularies: dict[str, Vocabulary]) -> None:
    for vocabulary in vocabularies.values():
        assert find_tool_format(UNKNOWN[name], vocabulary.text) is None


def test_a_tokenizer_shows_what_its_template_does_not(
    vocabularies: dict[str, Vocabulary],
) -> None:
    assert find_tool_format(TOOLS, vocabularies["spelled"].text) is None
    found = find_tool_format(TOOLS, vocabularies["special"].text)
    assert found is not None
    assert found.name == "mistral"


def test_mistral_templates_show_which_form_the_model_writes(
    vocabularies: dict[str, Vocabulary],
) -> None:
    text = vocabularies["special"].text
    for template, begins in (
        (TEMPLATES["mistral"], 'rest: "["'),
        (TOOLS + "'[TOOL_CALLS]' + name + '[ARGS]' + arguments", "rest: rest_0"),
    ):
        found = find_tool_format(template, text)
        assert isinstance(found, MistralFormat)
        grammar = found.grammar(
            [ToolDefinition(name="f", path="")],
            ToolChoice(mode="required"),
            parallel=True,
            tokenizer=text,
        )
        assert grammar is not None
        assert begins in grammar


def test_only_special_markers_need_to_be_shown(vocabularies: dict[str, Vocabulary]) -> None:
    found = find_tool_format(TEMPLATES["hermes"], vocabularies["special"].text)
    assert found is not None
    special = vocabularies["special"]
    markers = special.encode("<tool_call></tool_call>")
    assert found.shown_token_ids(special.text) == frozenset(markers)
    assert found.shown_token_ids(vocabularies["added"].text) == frozenset()
    assert found.shown_token_ids(vocabularies["spelled"].text) == frozenset()
