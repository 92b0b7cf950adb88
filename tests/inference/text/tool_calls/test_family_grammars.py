"""What the grammars of newer families let through and what not; and all of it can be read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.errors import UnsupportedSchemaError
from inference.text.tool_calls import json_formats as ds
from inference.text.tool_calls.tag_formats import DSML
from tests.cases import each_case
from tests.inference.text.tool_calls.calls import read, read_by_grammar, tool
from tests.inference.text.tool_calls.conftest import Vocabulary, make_vocabulary
from tests.inference.text.tool_calls.enforced import AUTO, REQUIRED, Enforced
from tests.inference.text.tool_calls.family_cases import FAMILIES

Call = tuple[str, dict[str, Any]]

MARKERS = [
    *(ds.CALLS_BEGIN, ds.CALLS_END, ds.CALL_BEGIN, ds.CALL_END, ds.SEPARATOR),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_end|>", "<|tool_call_argument_begin|>", "<tool_call>", "</tool_call>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call|>"),
    *("<start_function_call>", "<end_function_call>", "<escape>", "<|tool_call>", "<tool_call|>"),
    DSML,
    *("<|START_ACTION|>", "<|END_ACTION|>", "<minimax:tool_call>", "</minimax:tool_call>"),
    *("<seed:tool_call>", "</seed:tool_call>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *('<|"|>', "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
]
WEATHER = tool(
    "weather",
    {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "near": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
    },
    required=["city"],
    strict=True,
)
assert WEATHER.parameters is not None
WEATHER.parameters["$defs"] = {
    "Place": {
        "type": "object",
        "properties": {"lat": {"type": "number"}, "in": {"$ref": "#/$defs/Place"}},
        "required": ["lat"],
        "additionalProperties": False,
    }
}
NOW = ToolDefinition(name="now", path="tools.1", strict=True)
GOOD: Call = (
    "weather",
    {"city": "Paris", "days": 3, "unit": "C", "near": [{"lat": 1.5, "in": {"lat": 2}}]},
)
NOW_CALL: Call = ("now", {})
BAD: list[Call] = [
    ("weather", {"days": 3}),
    ("weather", {"city": "Paris", "days": "x"}),
    ("weather", {"city": "Paris", "unit": "K"}),
    ("weather", {"city": "Paris", "near": [{"in": {"lat": 1}}]}),
    ("weather", {"city": "Paris", "more": 1}),
    ("now", {"a": 1}),
    ("nobody", {}),
]
MANY = [name for name in FAMILIES if name != "harmony"]


@pytest.fixture(scope="module", params=["special", "spelled"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return make_vocabulary(MARKERS if request.param == "special" else [], special=True)


def _gemma(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            return "{" + ",".join(f"{k}:{_gemma(v, quote)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(_gemma(one, quote) for one in value) + "]"
    return json.dumps(value)


def _glm(name: str, arguments: dict[str, Any], newline: str) -> str:
    pairs = [
        f"<arg_key>{key}</arg_key>{newline}<arg_value>"
        f"{value if isinstance(value, str) else json.dumps(value)}</arg_value>{newline}"
        for key, value in arguments.items()
    ]
    return f"<tool_call>{name}{newline}{''.join(pairs)}</tool_call>"


def _dsml(name: str, arguments: dict[str, Any]) -> str:
    pairs = [
        f'<{DSML}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value)}</{DSML}parameter>"
        for key, value in arguments.items()
    ]
    return f'<{DSML}invoke name="{name}">\n' + "\n".join(pairs) + f"\n</{DSML}invoke>"


SEED = ("<seed:tool_call>\n<function={}>\n", "<parameter={}>", "</function>\n</seed:tool_call>")
INVOKE = ('<invoke name="{}">\n', '<parameter name="{}">', "</invoke>")


def _tagged(name: str, arguments: dict[str, Any], tags: tuple[str, str, str]) -> str:
    opens, parameter, ends = tags
    pairs = [
        f"{parameter.format(key)}{value if isinstance(value, str) else json.dumps(value)}"
        "</parameter>\n"
        for key, value in arguments.items()
    ]
    return f"{opens.format(name)}{''.join(pairs)}{ends}"


def written(family: str, *calls: Call) -> str:
    """Writes these calls as models of that family do."""
    texts = [json.dumps(arguments) for _, arguments in calls]
    names = [name for name, _ in calls]
    both = list(zip(names, texts, strict=True))
    match family:
        case "deepseek":
            heads = [
                f"{ds.CALL_BEGIN}function{ds.SEPARATOR}{name}\n```json\n{text}\n```{ds.CALL_END}"
                for name, text in both
            ]
            return ds.CALLS_BEGIN + "\n".join(heads) + ds.CALLS_END
        case "deepseek_v31":
            heads = [f"{ds.CALL_BEGIN}{n}{ds.SEPARATOR}{t}{ds.CALL_END}" for n, t in both]
            return ds.CALLS_BEGIN + "".join(heads) + ds.CALLS_END
        case "dsml" | "dsml_v4":
            section = DSML + ("function_calls" if family == "dsml" else "tool_calls")
            return f"<{section}>\n" + "\n".join(_dsml(*call) for call in calls) + f"\n</{section}>"
        case "kimi":
            heads = [
                f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{text}"
                "<|tool_call_end|>"
                for index, (name, text) in enumerate(both)
            ]
            return "<|tool_calls_section_begin|>" + "".join(heads) + "<|tool_calls_section_end|>"
        case "glm":
            return "\n".join(_glm(*call, "\n") for call in calls)
        case "glm_47":
            return "\n".join(_glm(*call, "") for call in calls)
        case "lfm2":
            inner = ", ".join(
                f"{name}({', '.join(f'{key}={json.dumps(one)}' for key, one in arguments.items())})"
                for name, arguments in calls
            )
            return f"<|tool_call_start|>[{inner}]<|tool_call_end|>"
        case "seed":
            return "\n".join(_tagged(*call, SEED) for call in calls)
        case "minimax":
            inner = "\n".join(_tagged(*call, INVOKE) for call in calls)
            return f"<minimax:tool_call>\n{inner}\n</minimax:tool_call>"
        case "function_gemma":
            return "".join(
                f"<start_function_call>call:{name}{_gemma(arguments, '<escape>')}"
                "<end_function_call>"
                for name, arguments in calls
            )
        case "gemma_4":
            quote = '<|"|>'
            return "".join(
                f"<|tool_call>call:{name}{_gemma(arguments, quote)}<tool_call|>"
                for name, arguments in calls
            )
        case "harmony":
            ((name, text),) = both
            return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}"
    objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    listed = f"[{', '.join(objects)}]"
    match family:
        case "plain":
            return "\n".join(objects)
        case "hunyuan":
            return f"<tool_calls>{listed}</tool_calls>"
        case "nemotron":
            return f"<TOOLCALL>{listed}</TOOLCALL>"
        case "functools":
            return f"functools{listed}"
        case "command_r":
            counted = [
                f'{{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {text}}}'
                for index, (name, text) in enumerate(both)
            ]
            inner = ",\n    ".join(counted)
            return f"<|START_ACTION|>[\n    {inner}\n]<|END_ACTION|>"
    return f"<|tool_call|>{listed}"


def _enforced(
    family: str,
    vocabulary: Vocabulary,
    choice: ToolChoice,
    tools: Sequence[ToolDefinition] = (WEATHER, NOW),
    *,
    parallel: bool = True,
) -> Enforced:
    return Enforced(family, vocabulary, tools, choice, parallel=parallel)


@each_case("family", FAMILIES)
def test_a_forced_call_follows_its_schema(family: str, vocabulary: Vocabulary) -> None:
    enforced = _enforced(family, vocabulary, REQUIRED)
    assert enforced.accepts(written(family, GOOD))
    assert enforced.accepts(written(family, NOW_CALL))
    for call in BAD:
        assert not enforced.accepts(written(family, call)), call
    assert not enforced.accepts("")
    assert not enforced.accepts("I do not want to.")


@each_case("family", MANY)
def test_several_calls_where_they_are_allowed(family: str, vocabulary: Vocabulary) -> None:
    both = written(family, GOOD, NOW_CALL)
    assert _enforced(family, vocabulary, REQUIRED).accepts(both)
    assert not _enforced(family, vocabulary, REQUIRED, parallel=False).accepts(both)


@each_case("family", FAMILIES)
def test_a_named_function(family: str, vocabulary: Vocabulary) -> None:
    enforced = _enforced(family, vocabulary, ToolChoice(mode="required", name="now"))
    assert enforced.accepts(written(family, NOW_CALL))
    assert not enforced.accepts(written(family, GOOD))


@each_case("family", [name for name in MANY if name != "plain"])
def test_strict_tools_beside_free_text(family: str, vocabulary: Vocabulary) -> None:
    enforced = _enforced(family, vocabulary, AUTO)
    assert enforced.accepts("Text, <b> and é🙂.\n")
    assert enforced.accepts(f"I look.{written(family, GOOD)}")
    for call in BAD:
        assert not enforced.accepts(f"I look.{written(family, call)}"), call


def test_text_of_harmony_is_in_its_channel(vocabulary: Vocabulary) -> None:
    enforced = _enforced("harmony", vocabulary, AUTO)
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    assert enforced.accepts("<|channel|>final<|message|>Yes.")
    assert enforced.accepts(f"{preamble}{written('harmony', GOOD)}")
    assert not enforced.accepts(f"{preamble}{written('harmony', BAD[0])}")
    assert not enforced.accepts("Yes.")


@each_case("family", FAMILIES)
def test_nothing_to_enforce(family: str, vocabulary: Vocabulary) -> None:
    loose = [tool("f", {"a": {}})]
    for choice in (AUTO, ToolChoice(mode="none")):
        text = FAMILIES[family].grammar(loose, choice, parallel=True, tokenizer=vocabulary.text)
        assert text is None


@each_case("keyword", ["pattern", "minLength"])
@each_case("family", ["glm", "gemma_4", "dsml", "minimax", "seed"])
def test_what_cannot_be_enforced_is_refused_by_name(
    family: str, keyword: str, vocabulary: Vocabulary
) -> None:
    value = {"type": "string", keyword: 3 if keyword == "minLength" else "^x"}
    with pytest.raises(UnsupportedSchemaError, match=keyword):
        _enforced(family, vocabulary, REQUIRED, [tool("f", {"a": value})])


def test_a_value_of_two_types_shows_which_it_is(vocabulary: Vocabulary) -> None:
    either = tool("f", {"a": {"type": ["string", "integer"]}, "b": {"enum": ["x", 1]}}, strict=True)
    enforced = _enforced("dsml", vocabulary, REQUIRED, [either])
    for arguments in ({"a": "x"}, {"a": 1}, {"a": "1", "b": "x"}, {"b": 1}):
        answer = written("dsml", ("f", arguments))
        assert enforced.accepts(answer), arguments
        ((_, parsed),) = read(FAMILIES["dsml"], answer, [either])
        assert json.loads(parsed) == arguments
    assert not enforced.accepts(written("dsml", ("f", {"b": "1"})))


SNIPPETS = [*MARKERS, "</parameter>\n", '"', "}", "]", ",", "1", "{", "\n", "x", "city", ":"]


@pytest.mark.slow
@each_case("family", [name for name in FAMILIES if name != "harmony"])
def test_what_a_grammar_lets_through_can_be_read(family: str, vocabulary: Vocabulary) -> None:
    enforced = _enforced(family, vocabulary, REQUIRED)
    chooser = random.Random(3)
    num_ended = 0
    for _ in range(8):
        answer = enforced.walk(chooser, SNIPPETS, ends=0.3, jumps=0.6)
        if answer is None:
            continue
        num_ended += 1
        parts = read_by_grammar(FAMILIES[family], answer, [WEATHER, NOW])
        assert parts and not any(isinstance(part, str) for part in parts), answer
        for name, arguments in parts:
            assert name in ("weather", "now")
            assert json.loads(arguments).keys() <= WEATHER.parameters["properties"].keys()
            assert name == "now" or isinstance(json.loads(arguments)["city"], str), answer
    assert num_ended > 0
