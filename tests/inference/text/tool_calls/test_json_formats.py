"""Answers seen in the field, in the Hermes format."""

from __future__ import annotations

from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, Merged, read

WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
PARIS = ("get_weather", '{"city":"Paris"}')
BROKEN = '{"name":"bash","arguments":{"command":"rm -rf build","cwd": /srv}}'
INNER = '{"name": "bash", "arguments": {"command": "rm"}}'
LIST_FILES = ("bash", '{"command":"ls"}')


def _wrapped(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


EXAMPLES: dict[str, tuple[str, Merged]] = {
    "one call": (_wrapped(WEATHER), [PARIS]),
    "text around it": (f"I look.\n\n{_wrapped(WEATHER)}\nDone. ", ["I look.", PARIS, "Done. "]),
    "several calls": (f"{_wrapped(WEATHER)}\n{_wrapped(WEATHER)}", [PARIS, PARIS]),
    "several in one pair of markers": (_wrapped(f"{WEATHER}\n{WEATHER}"), [PARIS, PARIS]),
    "a list, as SmolLM2 writes it": (_wrapped(f"[{WEATHER}, {WEATHER}]"), [PARIS, PARIS]),
    "no whitespace": (f"Hi<tool_call>{WEATHER}</tool_call>", ["Hi", PARIS]),
    "no closing marker": (f"<tool_call>\n{WEATHER}", [PARIS]),
    "no closing marker before the next": (
        f"<tool_call>{WEATHER}<tool_call>{WEATHER}",
        [PARIS, PARIS],
    ),
    "an unknown tool": (_wrapped('{"name": "fly", "arguments": {}}'), [("fly", "{}")]),
    "a closing marker in a string": (
        _wrapped('{"name": "bash", "arguments": {"command": "echo \'</tool_call>}\'"}}'),
        [("bash", '{"command":"echo \'</tool_call>}\'"}')],
    ),
    "no arguments": (_wrapped('{"name": "now"}'), [("now", "{}")]),
    "arguments that are null": (_wrapped('{"name": "now", "arguments": null}'), [("now", "{}")]),
    "one extra brace": (_wrapped(WEATHER + "}"), [PARIS]),
    "three extra braces": (_wrapped(WEATHER + "}\n}}"), [PARIS]),
    "with a fourth it is text": (_wrapped(WEATHER + "}}}}"), [_wrapped(WEATHER + "}}}}")]),
    "arguments beside the name, and a brace whose opening is missing": (
        _wrapped('{"name": "get_weather", "city": "Paris"}}'),
        [_wrapped('{"name": "get_weather", "city": "Paris"}}')],
    ),
    "arguments that are null, and a brace whose opening is missing": (
        _wrapped('{"name": "get_weather", "arguments": null}}'),
        [_wrapped('{"name": "get_weather", "arguments": null}}')],
    ),
    "an object beside a call, which may be a part of it": (
        _wrapped(WEATHER + ' {"days": 3, "city": }'),
        [_wrapped(WEATHER + ' {"days": 3, "city": }')],
    ),
    "an empty object beside a name, which may be its arguments": (
        _wrapped('{"name": "get_weather"},{}'),
        [_wrapped('{"name": "get_weather"},{}')],
    ),
    "arguments beside the name, in doubled braces": (
        _wrapped('{{"name": "get_weather", "city": "Paris"}}'),
        [PARIS],
    ),
    "doubled braces": (_wrapped(f"{{{WEATHER}}}"), [PARIS]),
    "a brace too few": (_wrapped(WEATHER[:-1]), [PARIS]),
    "two braces too few: an argument may be missing": (
        _wrapped(WEATHER[:-2]),
        [_wrapped(WEATHER[:-2])],
    ),
    "a brace too few behind objects: it may be one of theirs": (
        _wrapped('{"name": "f", "arguments": {"a": {"b": 1}}'),
        [_wrapped('{"name": "f", "arguments": {"a": {"b": 1}}')],
    ),
    "a value without its quotes": (_wrapped(BROKEN), [_wrapped(BROKEN)]),
    "a value without its quotes, cut off": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": Paris',
        ['<tool_call>{"name": "get_weather", "arguments": {"city": Paris'],
    ),
    "a brace in the middle": (
        _wrapped('{"name": "bash", "arguments": {"command": "rm -rf build"}}, "cwd": "/srv"}}'),
        [_wrapped('{"name": "bash", "arguments": {"command": "rm -rf build"}}, "cwd": "/srv"}}')],
    ),
    "members beside the arguments": (
        _wrapped('{"name": "bash", "arguments": {"command": "rm -rf build"}, "cwd": "/srv"}'),
        [_wrapped('{"name": "bash", "arguments": {"command": "rm -rf build"}, "cwd": "/srv"}')],
    ),
    "a call in two objects": (
        _wrapped('{"name": "bash"}}{"arguments": {"command": "ls"}}'),
        [_wrapped('{"name": "bash"}}{"arguments": {"command": "ls"}}')],
    ),
    "a key twice": (
        _wrapped('{"name": "bash", "arguments": {"command": "ls", "command": "rm"}}'),
        [_wrapped('{"name": "bash", "arguments": {"command": "ls", "command": "rm"}}')],
    ),
    "two sets of arguments": (
        _wrapped('{"name": "bash", "arguments": {"command": "ls"}, "parameters": {}}'),
        [_wrapped('{"name": "bash", "arguments": {"command": "ls"}, "parameters": {}}')],
    ),
    "a call inside of a broken one stays text": (
        _wrapped(f'{{"name": "f", "arguments": {{"a": b, "c": "{_wrapped(INNER)}"}}}}'),
        [_wrapped(f'{{"name": "f", "arguments": {{"a": b, "c": "{_wrapped(INNER)}"}}}}')],
    ),
    "an argument may be missing behind a comma": (
        _wrapped('{"name": "get_weather", "arguments": {"city": "Paris", }}'),
        [_wrapped('{"name": "get_weather", "arguments": {"city": "Paris", }}')],
    ),
    "none is missing behind a comma": (
        _wrapped('{"name": "bash", "arguments": {"command": "ls", }}'),
        [LIST_FILES],
    ),
    "a number as a text": (
        _wrapped('{"name": "get_weather", "arguments": {"city": "Paris", "days": "3"}}'),
        [("get_weather", '{"city":"Paris","days":3}')],
    ),
    "numbers stay as they are written": (
        _wrapped('{"name": "f", "arguments": {"a": 1.10e999}}'),
        [("f", '{"a":1.10e999}')],
    ),
    "the name inside of the arguments": (
        _wrapped('{"arguments": {"name": "bash", "command": "ls"}}'),
        [LIST_FILES],
    ),
    "the whole call inside of the arguments": (
        _wrapped('{"arguments": {"name": "bash", "arguments": {"command": "ls"}}}'),
        [LIST_FILES],
    ),
    "no name, and an argument that is a tool's name": (
        _wrapped('{"arguments": {"name": "bash", "age": 3}}'),
        [("create_user", '{"name":"bash","age":3}')],
    ),
    "an argument that is called name": (
        _wrapped('{"name": "create_user", "arguments": {"name": "bash", "age": 3}}'),
        [("create_user", '{"name":"bash","age":3}')],
    ),
    "no name, and one tool takes just this": (
        _wrapped('{"arguments": {"command": "ls"}}'),
        [LIST_FILES],
    ),
    "an empty name": (_wrapped('{"name": "", "arguments": {"command": "ls"}}'), [LIST_FILES]),
    "no name, and a required argument is missing": (
        _wrapped('{"arguments": {"path": "a"}}'),
        [_wrapped('{"arguments": {"path": "a"}}')],
    ),
    "no name, and two tools could take it": (
        _wrapped('{"arguments": {}}'),
        [_wrapped('{"arguments": {}}')],
    ),
    "arguments as a string": (
        _wrapped('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}'),
        [LIST_FILES],
    ),
    "arguments as an empty string": (_wrapped('{"name": "now", "arguments": ""}'), [("now", "{}")]),
    "parameters": (_wrapped('{"name": "bash", "parameters": {"command": "ls"}}'), [LIST_FILES]),
    "arguments before the name": (
        _wrapped('{"arguments": {"command": "ls"}, "name": "bash"}'),
        [LIST_FILES],
    ),
    "arguments beside the name": (_wrapped('{"name": "bash", "command": "ls"}'), [LIST_FILES]),
    "as the API has it": (
        _wrapped(
            '{"type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}'
        ),
        [LIST_FILES],
    ),
    "an id after the arguments": (
        _wrapped('{"name": "bash", "arguments": {"command": "ls"}, "id": 3}'),
        [LIST_FILES],
    ),
    "a line break inside a string": (
        _wrapped('{"name": "bash", "arguments": {"command": "a\n\tb"}}'),
        [("bash", '{"command":"a\\n\\tb"}')],
    ),
    "escapes that JSON does not have": (
        _wrapped(r'{"name": "bash", "arguments": {"command": "grep \d \'x\' \u12"}}'),
        [("bash", r'{"command":"grep \\d ' + "'x'" + r' \\u12"}')],
    ),
    "a trailing comma and Python's words": (
        _wrapped('{"name": "f", "arguments": {"a": [True, None,], }}'),
        [("f", '{"a":[true,null]}')],
    ),
    "the marker in prose": ("Use <tool_call> here", ["Use <tool_call> here"]),
    "a closing marker alone": ("a </tool_call> b", ["a </tool_call> b"]),
    "arguments that are no object": (
        "a " + _wrapped('{"name": "f", "arguments": [1]}') + " b",
        ["a " + _wrapped('{"name": "f", "arguments": [1]}') + " b"],
    ),
    "no JSON": (_wrapped("f(a=1)"), [_wrapped("f(a=1)")]),
    "half of a surrogate pair as a name": (
        _wrapped('{"name": "\\ud800", "arguments": {}}'),
        [_wrapped('{"name": "\\ud800", "arguments": {}}')],
    ),
    "broken in the middle": (
        _wrapped('{"name": "f", "arguments": {"a": 1, b: 2}}'),
        [_wrapped('{"name": "f", "arguments": {"a": 1, b: 2}}')],
    ),
    "cut off in the name": ('<tool_call>\n{"name": "get_w', ['<tool_call>\n{"name": "get_w']),
    "cut off after the name": ('<tool_call>{"name": "bash"', ['<tool_call>{"name": "bash"']),
    "cut off in a string": (
        '<tool_call>{"name": "f", "arguments": {"a": [{"b": "x\\',
        ['<tool_call>{"name": "f", "arguments": {"a": [{"b": "x\\'],
    ),
    "cut off in a key": (
        '<tool_call>{"name": "f", "arguments": {"a": 1, "b',
        ['<tool_call>{"name": "f", "arguments": {"a": 1, "b'],
    ),
    "cut off in a number": (
        '<tool_call>{"name": "f", "arguments": {"a": 12',
        ['<tool_call>{"name": "f", "arguments": {"a": 12'],
    ),
    "cut off after a literal": (
        '<tool_call>{"name": "f", "arguments": {"a": true',
        ['<tool_call>{"name": "f", "arguments": {"a": true'],
    ),
    "cut off in the closing marker": (f"<tool_call>{WEATHER}\n</tool", [PARIS]),
}


@each_case("name", EXAMPLES)
def test_example(name: str) -> None:
    text, expected = EXAMPLES[name]
    assert read(FORMATS["hermes"], text) == expected
