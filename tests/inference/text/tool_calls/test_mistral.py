"""Answers seen in the field, in Mistral's formats."""

from __future__ import annotations

from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, Merged, read

WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
PARIS = ("get_weather", '{"city":"Paris"}')
NAMED = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'

EXAMPLES: dict[str, tuple[str, Merged]] = {
    "one call": (f"[TOOL_CALLS][{WEATHER}]", [PARIS]),
    "whitespace": (f"[TOOL_CALLS] [\n{WEATHER}\n] ", [PARIS]),
    "several": (f"[TOOL_CALLS][{WEATHER}, {WEATHER}]", [PARIS, PARIS]),
    "text around it": (f"I look. [TOOL_CALLS][{WEATHER}]\nDone", ["I look.", PARIS, "Done"]),
    "with the model's own id": (
        f'[TOOL_CALLS][{WEATHER[:-1]}, "id": "abc123def"}}]',
        [PARIS],
    ),
    "no list": (f"[TOOL_CALLS]{WEATHER}", [PARIS]),
    "an extra brace": (f"[TOOL_CALLS][{WEATHER}}}]", [PARIS]),
    "arguments as a string": (
        '[TOOL_CALLS][{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}]',
        [("bash", '{"command":"ls"}')],
    ),
    "no name, and one tool takes just this": (
        '[TOOL_CALLS][{"arguments": {"command": "ls"}}]',
        [("bash", '{"command":"ls"}')],
    ),
    "the second is broken": (
        f"[TOOL_CALLS][{WEATHER}, {{1}}]",
        [PARIS, ", {1}]"],
    ),
    "lines of text behind it": (
        f"[TOOL_CALLS][{WEATHER}]\nDone.\nMore <b>\n",
        [PARIS, "Done.\nMore <b>\n"],
    ),
    "an empty list": ("[TOOL_CALLS][]", ["[TOOL_CALLS][]"]),
    "named": (NAMED, [PARIS]),
    "several named": (NAMED + NAMED, [PARIS, PARIS]),
    "text around a named call": (f"I look.{NAMED} Done", ["I look.", PARIS, "Done"]),
    "named, with an id": (
        '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}',
        [PARIS],
    ),
    "named, without its marker": ('[TOOL_CALLS]get_weather{"city": "Paris"}', [PARIS]),
    "named, with an extra brace": (NAMED + "}", [PARIS]),
    "named, with whitespace": ('[TOOL_CALLS] get_weather [ARGS] {"city": "Paris"}', [PARIS]),
    "named, an unknown tool": ("[TOOL_CALLS]fly[ARGS]{}", [("fly", "{}")]),
    "named, broken in the middle": (
        "[TOOL_CALLS]f[ARGS]{a}",
        ["[TOOL_CALLS]f[ARGS]{a}"],
    ),
    "a name, and something that is no argument": (
        '[TOOL_CALLS]{"name": "create_user", "id": 7}',
        ['[TOOL_CALLS]{"name": "create_user", "id": 7}'],
    ),
    "named, with what is left of a call behind it": (
        NAMED + ', "days": 3}',
        [NAMED + ', "days": 3}'],
    ),
    "no call": ("[TOOL_CALLS] nothing at all", ["[TOOL_CALLS] nothing at all"]),
    "a name of several words": ("[TOOL_CALLS]a b{}", ["[TOOL_CALLS]a b{}"]),
    "cut off in the name": ("a [TOOL_CALLS]get_w", ["a [TOOL_CALLS]get_w"]),
    "cut off in the list": ('[TOOL_CALLS][{"name": "ba', ['[TOOL_CALLS][{"name": "ba']),
    "cut off in the marker": ("a [TOOL_", ["a [TOOL_"]),
    "cut off in a string": (NAMED[:-4], [NAMED[:-4]]),
}


@each_case("name", EXAMPLES)
@each_case("tool_format", ["mistral", "mistral_named"])
def test_example(tool_format: str, name: str) -> None:
    text, expected = EXAMPLES[name]
    assert read(FORMATS[tool_format], text) == expected
