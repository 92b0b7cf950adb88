"""Answers with calls in JSON or Python as models write them, and what is read."""

from __future__ import annotations

from inference.text.tool_calls import json_formats as ds
from tests.inference.text.tool_calls.calls import Merged

LS = ("bash", '{"command":"ls"}')
TO_PARIS = ("get_weather", '{"city":"Paris"}')
WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
LLAMA_WEATHER = WEATHER.replace("arguments", "parameters")
BROKEN = '{"name":"bash","arguments":{"command":"rm -rf build","cwd": /srv}}'
INNER = '{"name": "bash", "arguments": {"command": "rm"}}'
TAG = "<|python_tag|>"
NAMED = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
FENCED = f'function{ds.SEPARATOR}bash\n```json\n{{"command": "ls"}}\n```'
BARE = f'bash{ds.SEPARATOR}{{"command": "ls"}}'
HEAD, MIDDLE, END = ds.CALLS_BEGIN + ds.CALL_BEGIN, ds.CALL_BEGIN, ds.CALL_END
NESTED = '{"name": "f", "arguments": {"a":%}}'
QUOTED_ZERO = '"0"'
KIMI_LS = (
    '<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{"command": "ls"}'
    "<|tool_call_end|>"
)
KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
COMMAND_R_LS = '{"tool_call_id": "0", "tool_name": "bash", "parameters": {"command": "ls"}}'
GRANITE_LS = '{"name": "bash", "arguments": {"command": "ls"}}'


def _wrapped(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


READ: dict[str, dict[str, tuple[str, Merged]]] = {
    "hermes": {
        "several in one pair of markers": (_wrapped(f"{WEATHER}\n{WEATHER}"), [TO_PARIS, TO_PARIS]),
        "a list, as SmolLM2 writes it": (_wrapped(f"[{WEATHER}, {WEATHER}]"), [TO_PARIS, TO_PARIS]),
        "no whitespace": (f"Hi<tool_call>{WEATHER}</tool_call>", ["Hi", TO_PARIS]),
        "no closing marker": (f"<tool_call>\n{WEATHER}", [TO_PARIS]),
        "no arguments": (_wrapped('{"name": "now"}'), [("now", "{}")]),
        "no closing marker before the next": (
            f"<tool_call>{WEATHER}<tool_call>{WEATHER}",
            [TO_PARIS, TO_PARIS],
        ),
        "arguments that are null": (
            _wrapped('{"name": "now", "arguments": null}'),
            [("now", "{}")],
        ),
        "a number as a text": (
            _wrapped('{"name": "get_weather", "arguments": {"city": "Paris", "days": "3"}}'),
            [("get_weather", '{"city":"Paris","days":3}')],
        ),
        "three extra braces": (_wrapped(WEATHER + "}\n}}"), [TO_PARIS]),
        "one extra brace": (_wrapped(WEATHER + "}"), [TO_PARIS]),
        "arguments beside the name, in doubled braces": (
            _wrapped('{{"name": "get_weather", "city": "Paris"}}'),
            [TO_PARIS],
        ),
        "doubled braces": (_wrapped(f"{{{WEATHER}}}"), [TO_PARIS]),
        "a brace too few": (_wrapped(WEATHER[:-1]), [TO_PARIS]),
        "mistakes in JSON that have one meaning": (
            _wrapped(
                '{ "name" :\n"f" , "arguments": {"a": [True, False, None, 1.5], "b": "a\n\tb", '
                '"c": "\\d \\\' \\u12 \\u00e9 \\" \\\n"}}'
            ),
            [
                (
                    "f",
                    '{"a":[true,false,null,1.5],"b":"a\\n\\tb",'
                    '"c":"\\\\d \' \\\\u12 é \\" \\\\\\n"}',
                )
            ],
        ),
        "as many brackets in one another as are read": (
            _wrapped(NESTED.replace("%", "[" * 62 + "]" * 62)),
            [("f", '{"a":' + "[" * 62 + "]" * 62 + "}")],
        ),
        "as long a number as is read": (
            _wrapped(NESTED.replace("%", "1" * 400)),
            [("f", '{"a":' + "1" * 400 + "}")],
        ),
        "the name inside of the arguments": (
            _wrapped('{"arguments": {"name": "bash", "command": "ls"}}'),
            [LS],
        ),
        "the whole call inside of the arguments": (
            _wrapped('{"arguments": {"name": "bash", "arguments": {"command": "ls"}}}'),
            [LS],
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
            [LS],
        ),
        "an empty name": (_wrapped('{"name": "", "arguments": {"command": "ls"}}'), [LS]),
        "arguments as a string": (
            _wrapped('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}'),
            [LS],
        ),
        "arguments as an empty string": (
            _wrapped('{"name": "now", "arguments": ""}'),
            [("now", "{}")],
        ),
        "arguments before the name": (
            _wrapped('{"arguments": {"command": "ls"}, "name": "bash"}'),
            [LS],
        ),
        "arguments beside the name": (_wrapped('{"name": "bash", "command": "ls"}'), [LS]),
        "as the API has it": (
            _wrapped(
                '{"type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}'
            ),
            [LS],
        ),
        "an id after the arguments": (
            _wrapped('{"name": "bash", "arguments": {"command": "ls"}, "id": 3}'),
            [LS],
        ),
        "cut off in the closing marker": (f"<tool_call>{WEATHER}\n</tool", [TO_PARIS]),
    },
    "llama3": {
        "whitespace before it": (f"\n\n {LLAMA_WEATHER}", [TO_PARIS]),
        "behind the tag": (TAG + LLAMA_WEATHER, [TO_PARIS]),
        "text before the tag": (f"I look. {TAG}{LLAMA_WEATHER}", ["I look.", TO_PARIS]),
        "several with tags": (
            f"{TAG}{LLAMA_WEATHER};{TAG}{LLAMA_WEATHER}",
            [TO_PARIS, ";", TO_PARIS],
        ),
        "several in lines": (f"{LLAMA_WEATHER}\n{LLAMA_WEATHER}", [TO_PARIS, TO_PARIS]),
        "a list": (f"[{LLAMA_WEATHER}, {LLAMA_WEATHER}]", [TO_PARIS, TO_PARIS]),
        "text after it": (f"{LLAMA_WEATHER} \n\nAnything else?", [TO_PARIS, "Anything else?"]),
        "text before, on another line": (f"I look:\n{LLAMA_WEATHER}", ["I look:", TO_PARIS]),
        "arguments": (LLAMA_WEATHER.replace("parameters", "arguments"), [TO_PARIS]),
        "with a type": (LLAMA_WEATHER.replace("{", '{"type": "function", ', 1), [TO_PARIS]),
        "as Llama writes functions": (
            '{"type": "function", "function": "bash", "parameters": {"command": "ls"}}',
            [LS],
        ),
        "no name, and one tool takes just this": ('{"parameters": {"command": "ls"}}', [LS]),
        "a tool's name alone": ('{"name": "now"}', [("now", "{}")]),
        "Python": (
            '[get_weather(city=\'Paris\', days=-2), now( ),\n bash(command="a)]\\"\\d")]',
            [
                ("get_weather", '{"city":"Paris","days":-2}'),
                ("now", "{}"),
                ("bash", '{"command":"a)]\\"\\\\d"}'),
            ],
        ),
        "Python behind the tag": (f"{TAG}[now()]", [("now", "{}")]),
        "Python's and JSON's values": (
            '[f(a=[True, None, {"b": (1.5, false)}], c=null)]',
            [("f", '{"a":[true,null,{"b":[1.5,false]}],"c":null}')],
        ),
        "Python with a number that is too large for it": ("[f(a=1e999)]", [("f", '{"a":1e999}')]),
        "Python with an argument that Python calls otherwise": (
            "[f(class=1)]",
            [("f", '{"class":1}')],
        ),
        "Python without the closing bracket": ("[now()", [("now", "{}")]),
        "Python and text": ("[now()]\nDone", [("now", "{}"), "Done"]),
    },
    "mistral": {
        "whitespace": (f"[TOOL_CALLS] [\n{WEATHER}\n] ", [TO_PARIS]),
        "text around it": (f"I look. [TOOL_CALLS][{WEATHER}]\nDone", ["I look.", TO_PARIS, "Done"]),
        "with the model's own id": (
            f'[TOOL_CALLS][{WEATHER[:-1]}, "id": "abc123def"}}]',
            [TO_PARIS],
        ),
        "no list": (f"[TOOL_CALLS]{WEATHER}", [TO_PARIS]),
        "lines of text behind it": (
            f"[TOOL_CALLS][{WEATHER}]\nDone.\nMore <b>\n",
            [TO_PARIS, "Done.\nMore <b>\n"],
        ),
        "text around a named call": (f"I look.{NAMED} Done", ["I look.", TO_PARIS, "Done"]),
        "named, with an id": (
            '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}',
            [TO_PARIS],
        ),
        "named, without its marker": ('[TOOL_CALLS]get_weather{"city": "Paris"}', [TO_PARIS]),
        "named, with an extra brace": (NAMED + "}", [TO_PARIS]),
        "named, with whitespace": ('[TOOL_CALLS] get_weather [ARGS] {"city": "Paris"}', [TO_PARIS]),
        "named, an unknown tool": ("[TOOL_CALLS]fly[ARGS]{}", [("fly", "{}")]),
    },
    "deepseek": {
        "without the outer markers": (f"{MIDDLE}{FENCED}{END}", [LS]),
        "without a type": (f"{HEAD}{BARE}{END}{ds.CALLS_END}", [LS]),
    },
    "kimi": {
        "white space in the section": (
            f"{KIMI_SECTION[0]}\n{KIMI_LS} \n{KIMI_LS}\n{KIMI_SECTION[1]}",
            [LS, LS],
        ),
        "without the section": (KIMI_LS, [LS]),
        "a name with a dot and no count": (
            KIMI_LS.replace("bash:0", "a.b"),
            [("a.b", '{"command":"ls"}')],
        ),
    },
    "granite": {
        "with a closing marker": (f"<|tool_call|>[{GRANITE_LS}]<|/tool_call|>", [LS]),
        "the older marker": (f"<function_call> {GRANITE_LS}", [LS]),
    },
    "hunyuan": {
        "lines in place of a list": (
            f"<tool_calls>\n{GRANITE_LS}\n{GRANITE_LS}\n</tool_calls>",
            [LS, LS],
        ),
        "without its end": (f"<tool_calls>[{GRANITE_LS}]", [LS]),
    },
    "command_r": {
        "a number for an id": (
            f"<|START_ACTION|>[{COMMAND_R_LS.replace(QUOTED_ZERO, '0')}]<|END_ACTION|>",
            [LS],
        ),
    },
    "lfm2": {
        "JSON": (f"<|tool_call_start|>{GRANITE_LS}<|tool_call_end|>", [LS]),
        "without its end": ('<|tool_call_start|>[bash(command="ls")]', [LS]),
    },
}
NO_JSON = [
    *("{a}", "01", "[tru]", "1e", '"b', "[,]", "1 2", "[1 2]", '"b" "c"', "[1,,2]", "é", "1,"),
    *("1, 1", '1,"a":2', "[1", "1e999", "1" * 401, "[" * 63 + "]" * 63),
]
KEPT: dict[str, dict[str, str]] = {
    "hermes": {
        **{f"no JSON: {one[:9]}": _wrapped(NESTED.replace("%", one)) for one in NO_JSON},
        "an argument that may be cut off": _wrapped(NESTED.replace("%", "1")[:-3]),
        "with a fourth it is text": _wrapped(WEATHER + "}}}}"),
        "arguments beside the name, and a brace whose opening is missing": _wrapped(
            '{"name": "get_weather", "city": "Paris"}}'
        ),
        "arguments that are null, and a brace whose opening is missing": _wrapped(
            '{"name": "get_weather", "arguments": null}}'
        ),
        "an object beside a call, which may be a part of it": _wrapped(
            WEATHER + ' {"days": 3, "city": }'
        ),
        "an empty object beside a name, which may be its arguments": _wrapped(
            '{"name": "get_weather"},{}'
        ),
        "two braces too few: an argument may be missing": _wrapped(WEATHER[:-2]),
        "a brace too few behind objects: it may be one of theirs": _wrapped(
            '{"name": "f", "arguments": {"a": {"b": 1}}'
        ),
        "a value without its quotes": _wrapped(BROKEN),
        "a brace in the middle": _wrapped(
            '{"name": "bash", "arguments": {"command": "rm -rf build"}}, "cwd": "/srv"}}'
        ),
        "members beside the arguments": _wrapped(
            '{"name": "bash", "arguments": {"command": "rm -rf build"}, "cwd": "/srv"}'
        ),
        "a call in two objects": _wrapped('{"name": "bash"}}{"arguments": {"command": "ls"}}'),
        "a key twice": _wrapped(
            '{"name": "bash", "arguments": {"command": "ls", "command": "rm"}}'
        ),
        "two sets of arguments": _wrapped(
            '{"name": "bash", "arguments": {"command": "ls"}, "parameters": {}}'
        ),
        "a call inside of a broken one stays text": _wrapped(
            f'{{"name": "f", "arguments": {{"a": b, "c": "{_wrapped(INNER)}"}}}}'
        ),
        "an argument may be missing behind a comma": _wrapped(
            '{"name": "get_weather", "arguments": {"city": "Paris", }}'
        ),
        "no name, and a required argument is missing": _wrapped('{"arguments": {"path": "a"}}'),
        "no name, and two tools could take it": _wrapped('{"arguments": {}}'),
        "the marker in prose": "Use <tool_call> here",
        "a closing marker alone": "a </tool_call> b",
        "arguments that are no object": "a " + _wrapped('{"name": "f", "arguments": [1]}') + " b",
        "half of a surrogate pair as a name": _wrapped('{"name": "\\ud800", "arguments": {}}'),
    },
    "llama3": {
        "text before, on the same line": f"I look: {LLAMA_WEATHER}",
        "an answer in JSON": '{"name": "Alice", "age": 3}',
        "a name alone": '{"name": "Alice"}',
        "other JSON": '{"a": {"name": "bash"}}\n[1]',
        "code": "f() {\n  {x}\n}",
        "Python with an escape that is a character or a group": '[bash(command="sed s/(a)/\\1/")]',
        "Python, the second broken": "[now(), g(x)] b",
        "Python that is not literal": "[f(a=g())]",
        "Python that JSON cannot express": "[f(a={1, 2})]",
        "Python in parentheses, which may be a tuple or not": "[f(a=(1))]",
        "Python's stars": "[f(**{'a': 1})]",
        "a link": "[text](https://example.org)",
        "a list of JSON that is no call": '[{"a": 1}]',
        "code behind the tag": f"{TAG}print(1)",
        "the tag alone": TAG,
    },
    "mistral": {
        "the second call of a list is broken": f"[TOOL_CALLS][{WEATHER}, {{1}}]",
        "an empty list": "[TOOL_CALLS][]",
        "named, broken in the middle": "[TOOL_CALLS]f[ARGS]{a}",
        "a name, and something that is no argument": '[TOOL_CALLS]{"name": "create_user", "id": 7}',
        "named, with what is left of a call behind it": NAMED + ', "days": 3}',
        "no call": "[TOOL_CALLS] nothing at all",
        "a name of several words": "[TOOL_CALLS]a b{}",
    },
    "deepseek": {
        "no separator": f'{HEAD}bash{{"a": 1}}',
        "nothing in the section": f"{ds.CALLS_BEGIN} then",
    },
    "kimi": {
        "something else in the section": f"{KIMI_SECTION[0]} none {KIMI_SECTION[1]}",
    },
    "granite": {
        "the marker in prose": "A <|tool_call|> is",
    },
    "hunyuan": {
        "the marker in prose": "A <tool_calls> is",
    },
    "functools": {
        "the marker in prose": "Use functools.wraps [1].",
        "code that looks like it": "functools[0]",
    },
    "lfm2": {
        "the marker in prose": "A <|tool_call_start|> is",
    },
    "plain": {
        "something else": "No call.",
    },
}
"""What is no call, or has two readings, stays text."""
