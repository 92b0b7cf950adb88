"""Answers seen in the field, in the formats of Llama 3.1 and later."""

from __future__ import annotations

from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, TOOLS, Merged, merged, read

WEATHER = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
PARIS = ("get_weather", '{"city":"Paris"}')
TAG = "<|python_tag|>"

EXAMPLES: dict[str, tuple[str, Merged]] = {
    "one call": (WEATHER, [PARIS]),
    "whitespace before it": (f"\n\n {WEATHER}", [PARIS]),
    "behind the tag": (TAG + WEATHER, [PARIS]),
    "text before the tag": (f"I look. {TAG}{WEATHER}", ["I look.", PARIS]),
    "several with semicolons": (f"{WEATHER}; {WEATHER};{WEATHER}", [PARIS, PARIS, PARIS]),
    "several with tags": (f"{TAG}{WEATHER};{TAG}{WEATHER}", [PARIS, ";", PARIS]),
    "several in lines": (f"{WEATHER}\n{WEATHER}", [PARIS, PARIS]),
    "a list": (f"[{WEATHER}, {WEATHER}]", [PARIS, PARIS]),
    "text after it": (f"{WEATHER} \n\nAnything else?", [PARIS, "Anything else?"]),
    "text before, on another line": (f"I look:\n{WEATHER}", ["I look:", PARIS]),
    "text before, on the same line": (f"I look: {WEATHER}", [f"I look: {WEATHER}"]),
    "arguments": (WEATHER.replace("parameters", "arguments"), [PARIS]),
    "with a type": (WEATHER.replace("{", '{"type": "function", ', 1), [PARIS]),
    "as Llama writes functions": (
        '{"type": "function", "function": "bash", "parameters": {"command": "ls"}}',
        [("bash", '{"command":"ls"}')],
    ),
    "arguments as a string": (
        '{"name": "bash", "parameters": "{\\"command\\": \\"ls\\"}"}',
        [("bash", '{"command":"ls"}')],
    ),
    "no name, and one tool takes just this": (
        '{"parameters": {"command": "ls"}}',
        [("bash", '{"command":"ls"}')],
    ),
    "an extra brace": (f"{WEATHER}}}", [PARIS]),
    "an unknown tool": ('{"name": "fly", "parameters": {}}', [("fly", "{}")]),
    "an answer in JSON": ('{"name": "Alice", "age": 3}', ['{"name": "Alice", "age": 3}']),
    "a name alone": ('{"name": "Alice"}', ['{"name": "Alice"}']),
    "a tool's name alone": ('{"name": "now"}', [("now", "{}")]),
    "other JSON": ('{"a": {"name": "bash"}}\n[1]', ['{"a": {"name": "bash"}}\n[1]']),
    "code": ("f() {\n  {x}\n}", ["f() {\n  {x}\n}"]),
    "Python": (
        '[get_weather(city=\'Paris\', days=-2), now( ),\n bash(command="a)]\\"\\d")]',
        [
            ("get_weather", '{"city":"Paris","days":-2}'),
            ("now", "{}"),
            ("bash", '{"command":"a)]\\"\\\\d"}'),
        ],
    ),
    "Python with an escape by digits, which is a character or a group": (
        '[bash(command="sed s/(a)/\\1/")]',
        ['[bash(command="sed s/(a)/\\1/")]'],
    ),
    "Python behind the tag": (f"{TAG}[now()]", [("now", "{}")]),
    "Python's and JSON's values": (
        '[f(a=[True, None, {"b": (1.5, false)}], c=null)]',
        [("f", '{"a":[true,null,{"b":[1.5,false]}],"c":null}')],
    ),
    "Python that is not literal": ("[f(a=g())]", ["[f(a=g())]"]),
    "Python without names": ("[f(1)] b", ["[f(1)] b"]),
    "Python that JSON cannot express": ("[f(a={1, 2})]", ["[f(a={1, 2})]"]),
    "Python with a number that is too large for it": ("[f(a=1e999)]", [("f", '{"a":1e999}')]),
    "Python in parentheses, which may be a tuple or not": ("[f(a=(1))]", ["[f(a=(1))]"]),
    "Python with an argument that Python calls otherwise": ("[f(class=1)]", [("f", '{"class":1}')]),
    "Python's stars": ("[f(**{'a': 1})]", ["[f(**{'a': 1})]"]),
    "Python, the second broken": ("[now(), g(x)] b", [("now", "{}"), ", g(x)] b"]),
    "Python without the closing bracket": ("[now()", [("now", "{}")]),
    "Python cut off": ("[now(), f(a='x", [("now", "{}"), ", f(a='x"]),
    "Python and text": ("[now()]\nDone", [("now", "{}"), "Done"]),
    "a link": ("[text](https://example.org)", ["[text](https://example.org)"]),
    "a list of JSON that is no call": ('[{"a": 1}]', ['[{"a": 1}]']),
    "code behind the tag": (f"{TAG}print(1)", [f"{TAG}print(1)"]),
    "the tag alone": (TAG, [TAG]),
    "cut off in the name": ('{"name": "get_w', ['{"name": "get_w']),
    "cut off in a string": (WEATHER[:-5], [WEATHER[:-5]]),
}


@each_case("name", EXAMPLES)
def test_example(name: str) -> None:
    text, expected = EXAMPLES[name]
    assert read(FORMATS["llama3"], text) == expected


@each_case("begun", ['{"a', '{"name": "Alice", "age', '{"type": "object", "properties": {"'])
def test_an_answer_in_json_is_not_held_back(begun: str) -> None:
    parser = FORMATS["llama3"].parser(TOOLS)
    text = begun + '": ["'
    assert merged(part for character in text for part in parser.feed(character)) == [text]
