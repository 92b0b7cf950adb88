"""Answers with calls as models write them, and what is read of each."""

from __future__ import annotations

from inference.text.tool_calls import json_formats as ds
from inference.text.tool_calls.tag_formats import DSML
from tests.inference.text.tool_calls.calls import Merged, written

LS, TO_PARIS = ("bash", '{"command":"ls"}'), ("get_weather", '{"city":"Paris"}')
PARIS = ("get_weather", '{"city":"Paris","days":3}')
USER = ("create_user", '{"name":"bash","age":3}')
NOW = ("now", "{}")
WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
JSON_LS = '{"name": "bash", "arguments": {"command": "ls"}}'
NESTED = '{"name": "f", "arguments": {"a":%}}'
DEEPEST = "[" * 62 + "]" * 62
LLAMA_WEATHER = WEATHER.replace("arguments", "parameters")
TAG = "<|python_tag|>"
NAMED = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
FENCED = f'function{ds.SEPARATOR}bash\n```json\n{{"command": "ls"}}\n```'
HEAD = ds.CALLS_BEGIN + ds.CALL_BEGIN
KIMI_LS = (
    '<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{"command": "ls"}'
    "<|tool_call_end|>"
)
KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
COMMAND_R_LS = '{"tool_call_id": 0, "tool_name": "bash", "parameters": {"command": "ls"}}'
GLM_PARIS = written("glm", ("get_weather", {"city": "Paris", "days": 3}))
DSML_LS, DSML_PARIS = (
    written("dsml", call)
    .removeprefix(f"<{DSML}function_calls>\n")
    .partition(f"\n</{DSML}function")[0]
    for call in (("bash", {"command": "ls"}), ("get_weather", {"city": "Paris", "days": 3}))
)
QWEN_LS = "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>"
GEMMA = "<start_function_call>", "<end_function_call>"


def wrapped(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def in_file(arguments: str) -> str:
    return wrapped(f"<function=write_file>\n{arguments}</function>")


def in_call(arguments: str) -> Merged:
    return [("write_file", arguments)]


EMPTY = in_call('{"path":"","mode":""}')
IN_HERMES: list[tuple[str, Merged]] = [
    (f"{WEATHER}\n{WEATHER}", [TO_PARIS, TO_PARIS]),
    (f"[{WEATHER}, {WEATHER}]", [TO_PARIS, TO_PARIS]),  # as SmolLM2 writes it
    ('{"name": "now"}', [NOW]),
    ('{"name": "now", "arguments": null}', [NOW]),
    ('{"name": "get_weather", "arguments": {"city": "Paris", "days": "3"}}', [PARIS]),
    (WEATHER + "}\n}}", [TO_PARIS]),
    ('{{"name": "get_weather", "city": "Paris"}}', [TO_PARIS]),
    (f"{{{WEATHER}}}", [TO_PARIS]),
    (WEATHER[:-1], [TO_PARIS]),
    # Mistakes in JSON that have one meaning.
    (
        '{ "name" :\n"f" , "arguments": {"a": [True, False, None, 1.5], "b": "a\n\tb", '
        '"c": "\\d \\\' \\u12 \\u00e9 \\" \\\n"}}',
        [("f", r'{"a":[true,false,null,1.5],"b":"a\n\tb","c":"\\d ' + r"""' \\u12 é \" \\\n"}""")],
    ),
    # As many brackets in one another, and as long a number, as are read.
    (NESTED.replace("%", DEEPEST), [("f", f'{{"a":{DEEPEST}}}')]),
    (NESTED.replace("%", "1" * 400), [("f", '{"a":' + "1" * 400 + "}")]),
    ('{"arguments": {"name": "bash", "command": "ls"}}', [LS]),
    (f'{{"arguments": {JSON_LS}}}', [LS]),
    # An argument that is called name, of a call with and without one.
    ('{"arguments": {"name": "bash", "age": 3}}', [USER]),
    ('{"name": "create_user", "arguments": {"name": "bash", "age": 3}}', [USER]),
    # No name, and one tool takes just this.
    ('{"arguments": {"command": "ls"}}', [LS]),
    ('{"name": "", "arguments": {"command": "ls"}}', [LS]),
    ('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}', [LS]),
    ('{"name": "now", "arguments": ""}', [NOW]),
    ('{"arguments": {"command": "ls"}, "name": "bash"}', [LS]),
    ('{"name": "bash", "command": "ls"}', [LS]),
    (f'{{"type": "function", "function": {JSON_LS}}}', [LS]),
    ('{"name": "bash", "arguments": {"command": "ls"}, "id": 3}', [LS]),
]
READ: dict[str, list[tuple[str, Merged]]] = {
    "hermes": [
        *((wrapped(text), found) for text, found in IN_HERMES),
        (f"Hi<tool_call>{WEATHER}</tool_call>", ["Hi", TO_PARIS]),
        (f"<tool_call>\n{WEATHER}", [TO_PARIS]),
        (f"<tool_call>{WEATHER}<tool_call>{WEATHER}", [TO_PARIS, TO_PARIS]),
        (f"<tool_call>{WEATHER}\n</tool", [TO_PARIS]),
    ],
    "llama3": [
        (f"\n\n {LLAMA_WEATHER}", [TO_PARIS]),
        (TAG + LLAMA_WEATHER, [TO_PARIS]),
        (f"I look. {TAG}{LLAMA_WEATHER}", ["I look.", TO_PARIS]),
        (f"{TAG}{LLAMA_WEATHER};{TAG}{LLAMA_WEATHER}", [TO_PARIS, ";", TO_PARIS]),
        (f"{LLAMA_WEATHER}\n{LLAMA_WEATHER}", [TO_PARIS, TO_PARIS]),
        (f"[{LLAMA_WEATHER}, {LLAMA_WEATHER}]", [TO_PARIS, TO_PARIS]),
        (f"{LLAMA_WEATHER} \n\nAnything else?", [TO_PARIS, "Anything else?"]),
        (f"I look:\n{LLAMA_WEATHER}", ["I look:", TO_PARIS]),
        (LLAMA_WEATHER.replace("parameters", "arguments"), [TO_PARIS]),
        (LLAMA_WEATHER.replace("{", '{"type": "function", ', 1), [TO_PARIS]),
        ('{"type": "function", "function": "bash", "parameters": {"command": "ls"}}', [LS]),
        ('{"parameters": {"command": "ls"}}', [LS]),
        ('{"name": "now"}', [NOW]),
        (
            '[get_weather(city=\'Paris\', days=3), now( ),\n bash(command="a)]\\"\\d")]',
            [PARIS, NOW, ("bash", '{"command":"a)]\\"\\\\d"}')],
        ),
        (f"{TAG}[now()]", [NOW]),
        # Python's and JSON's values, a number that is too large for a float, and a keyword.
        (
            '[f(a=[True, None, {"b": (-2, false)}], c=null)]',
            [("f", '{"a":[true,null,{"b":[-2,false]}],"c":null}')],
        ),
        ("[f(a=1e999)]", [("f", '{"a":1e999}')]),
        ("[f(class=1)]", [("f", '{"class":1}')]),
        ("[now()", [NOW]),
        ("[now()]\nDone", [NOW, "Done"]),
    ],
    "mistral": [
        (f"[TOOL_CALLS] [\n{WEATHER}\n] ", [TO_PARIS]),
        (f"I look. [TOOL_CALLS][{WEATHER}]\nDone", ["I look.", TO_PARIS, "Done"]),
        (f'[TOOL_CALLS][{WEATHER[:-1]}, "id": "abc123def"}}]', [TO_PARIS]),
        (f"[TOOL_CALLS]{WEATHER}", [TO_PARIS]),
        (f"[TOOL_CALLS][{WEATHER}]\nDone.\nMore <b>\n", [TO_PARIS, "Done.\nMore <b>\n"]),
        (f"I look.{NAMED} Done", ["I look.", TO_PARIS, "Done"]),
        ('[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}', [TO_PARIS]),
        ('[TOOL_CALLS]get_weather{"city": "Paris"}', [TO_PARIS]),
        (NAMED + "}", [TO_PARIS]),
        ('[TOOL_CALLS] get_weather [ARGS] {"city": "Paris"}', [TO_PARIS]),
        ("[TOOL_CALLS]fly[ARGS]{}", [("fly", "{}")]),
    ],
    "deepseek": [
        (f"{ds.CALL_BEGIN}{FENCED}{ds.CALL_END}", [LS]),
        (f'{HEAD}bash{ds.SEPARATOR}{{"command": "ls"}}{ds.CALL_END}{ds.CALLS_END}', [LS]),
    ],
    "kimi": [
        (f"{KIMI_SECTION[0]}\n{KIMI_LS} \n{KIMI_LS}\n{KIMI_SECTION[1]}", [LS, LS]),
        (KIMI_LS, [LS]),
        (KIMI_LS.replace("bash:0", "a.b"), [("a.b", '{"command":"ls"}')]),
    ],
    "granite": [
        (f"<|tool_call|>[{JSON_LS}]<|/tool_call|>", [LS]),
        (f"<function_call> {JSON_LS}", [LS]),
    ],
    "hunyuan": [
        (f"<tool_calls>\n{JSON_LS}\n{JSON_LS}\n</tool_calls>", [LS, LS]),
        (f"<tool_calls>[{JSON_LS}]", [LS]),
    ],
    "command_r": [(f"<|START_ACTION|>[{COMMAND_R_LS}]<|END_ACTION|>", [LS])],
    "lfm2": [
        (f"<|tool_call_start|>{JSON_LS}<|tool_call_end|>", [LS]),
        ('<|tool_call_start|>[bash(command="ls")]', [LS]),
    ],
    "qwen_coder": [
        (f"{QWEN_LS}\n{QWEN_LS}", [LS, LS]),
        (f"I look.\n\n{QWEN_LS}", ["I look.", LS]),
        (f"I look.\n{QWEN_LS}\n</tool_call>", ["I look.", LS]),
        (f"<tool_call>\n{QWEN_LS}", [LS]),
        ("<tool_call><function=bash><parameter=command>ls</parameter></tool_call> a", [LS, "a"]),
        (in_file("<parameter=path>a</parameter>\n"), in_call('{"path":"a"}')),
        # One newline at either end is the format's.
        (in_file("<parameter=path>\n\n a \n\n</parameter>\n"), in_call(r'{"path":"\n a \n"}')),
        (in_file("<parameter=path>\n</parameter>\n<parameter=mode></parameter>"), EMPTY),
        (
            in_file(
                "<parameter=mode>\n420\n</parameter>\n"
                "<parameter=tags>\n[\"a\", 'b']\n</parameter>\n"
                "<parameter=options>\n{'a': True}\n</parameter>\n"
            ),
            in_call('{"mode":420,"tags":["a","b"],"options":{"a":true}}'),
        ),
        # What fits no type is a text, and so is an argument that no schema has.
        (
            in_file(
                "<parameter=mode>\nrw\n</parameter>\n<parameter=options>\n{a\n</parameter>\n"
                "<parameter=depth>\n3\n</parameter>\n"
            ),
            in_call('{"mode":"rw","options":"{a","depth":"3"}'),
        ),
        (
            in_file(
                "<parameter=content>\n<function=demo>\n</function>\n</tool_call>\n</parameter>\n"
                "<parameter=path>\na\n</parameter>\n"
            ),
            in_call(r'{"content":"<function=demo>\n</function>\n</tool_call>","path":"a"}'),
        ),
    ],
    "dsml": [
        (DSML_LS, [LS]),
        # A text that its tag calls one, and a list.
        (
            f'<{DSML}invoke name="write_file">\n'
            f'<{DSML}parameter name="mode" string="true">420</{DSML}parameter>\n'
            f'<{DSML}parameter name="tags" string="false">["a", "b"]</{DSML}parameter>\n'
            f"</{DSML}invoke>",
            in_call('{"mode":"420","tags":["a","b"]}'),
        ),
        (DSML_LS.replace('"true">ls', '"false">"ls"'), [LS]),
        (DSML_PARIS.replace(">3<", ">x<"), [("get_weather", '{"city":"Paris","days":"x"}')]),
        (DSML_PARIS.replace(' string="true"', "").replace(' string="false"', ""), [PARIS]),
    ],
    "glm": [
        (GLM_PARIS.replace("\n", ""), [PARIS]),
        (
            "<tool_call>write_file\n<arg_key>mode</arg_key><arg_value> 420 </arg_value>"
            '<arg_key>tags</arg_key><arg_value>["a", "b"]</arg_value></tool_call>',
            in_call('{"mode":420,"tags":["a","b"]}'),
        ),
        (f"<tool_call>{JSON_LS}</tool_call>", [LS]),
    ],
    "function_gemma": [
        (" call:f { a : 1 , b : <escape> x <escape> }".join(GEMMA), [("f", '{"a":1,"b":" x "}')]),
        ("call:f{<escape>a b<escape>:1}".join(GEMMA), [("f", '{"a b":1}')]),
        ('call:f{"a": "x\\"y", "b": [1, 2]}'.join(GEMMA), [("f", '{"a":"x\\"y","b":[1,2]}')]),
    ],
}
NO_JSON = [
    *("{a}", "01", "[tru]", "1e", '"b', "[,]", "1 2", "[1 2]", '"b" "c"', "[1,,2]", "é", "1,"),
    *("1, 1", '1,"a":2', "[1", "1e999", "1" * 401, f"[{DEEPEST}]"),
]
NO_HERMES = [
    *(NESTED.replace("%", one) for one in NO_JSON),
    NESTED.replace("%", "1")[:-3],
    WEATHER + "}}}}",
    '{"name": "get_weather", "city": "Paris"}}',
    '{"name": "get_weather", "arguments": null}}',
    # What may be a part of the call, or its arguments.
    WEATHER + ' {"days": 3, "city": }',
    '{"name": "get_weather"},{}',
    # An argument may be missing, or the brace is one of the arguments'.
    WEATHER[:-2],
    '{"name": "f", "arguments": {"a": {"b": 1}}',
    '{"name": "get_weather", "arguments": {"city": "Paris", }}',
    '{"name":"bash","arguments":{"command":"rm -rf build","cwd": /srv}}',
    '{"name": "bash", "arguments": {"command": "rm -rf build"}}, "cwd": "/srv"}}',
    '{"name": "bash", "arguments": {"command": "rm -rf build"}, "cwd": "/srv"}',
    '{"name": "bash"}}{"arguments": {"command": "ls"}}',
    '{"name": "bash", "arguments": {"command": "ls", "command": "rm"}}',
    '{"name": "bash", "arguments": {"command": "ls"}, "parameters": {}}',
    # A call inside of a broken one.
    f'{{"name": "f", "arguments": {{"a": b, "c": "{wrapped(JSON_LS)}"}}}}',
    # No name, and a required argument is missing, or two tools could take it.
    '{"arguments": {"path": "a"}}',
    '{"arguments": {}}',
    '{"name": "\\ud800", "arguments": {}}',
]
KEPT: dict[str, list[str]] = {
    "hermes": [
        *map(wrapped, NO_HERMES),
        "Use <tool_call> here",
        "a </tool_call> b",
        "a " + wrapped('{"name": "f", "arguments": [1]}') + " b",
    ],
    "llama3": [
        f"I look: {LLAMA_WEATHER}",
        '{"name": "Alice", "age": 3}',
        '{"name": "Alice"}',
        '{"a": {"name": "bash"}}\n[1]',
        "f() {\n  {x}\n}",
        # Python with an escape that is a character or a group.
        '[bash(command="sed s/(a)/\\1/")]',
        "[now(), g(x)] b",
        *("[f(a=g())]", "[f(a={1, 2})]", "[f(a=(1))]", "[f(**{'a': 1})]"),
        *("[text](https://example.org)", '[{"a": 1}]', f"{TAG}print(1)", TAG),
    ],
    "mistral": [
        f"[TOOL_CALLS][{WEATHER}, {{1}}]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]f[ARGS]{a}",
        '[TOOL_CALLS]{"name": "create_user", "id": 7}',
        NAMED + ', "days": 3}',
        "[TOOL_CALLS] nothing at all",
        "[TOOL_CALLS]a b{}",
    ],
    "deepseek": [f'{HEAD}bash{{"a": 1}}', f"{ds.CALLS_BEGIN} then"],
    "kimi": [" none ".join(KIMI_SECTION)],
    "granite": ["A <|tool_call|> is"],
    "hunyuan": ["A <tool_calls> is"],
    "functools": ["Use functools.wraps [1].", "functools[0]"],
    "lfm2": ["A <|tool_call_start|> is"],
    "plain": ["No call.", " \n ", "```json\n{}\n```<|"],
    "qwen_coder": [
        "Write <function=fly>\n</function> then",
        "Write <tool_call> and then",
        wrapped('<function=fly>{"a": 1}</function>'),
        "<tool_call>\n<function=a\n>",
        in_file("<parameter=path>\na\n</parameter>\n<parameter=mode\n>"),
        # A broken tag between two arguments, a broken closing tag, and a key twice.
        *(
            in_file(f"<parameter=path>\na\n{broken}\nb\n</parameter>\n")
            for broken in (
                "</parameter>\n<paramter=content>",
                "</parmeter>\n<parameter=content>",
                "</parameter>\n<parameter=path>",
            )
        ),
    ],
    "dsml": [
        written("dsml", ("bash", {"command": "ls"})).replace('"true">', '"true" >'),
        f"Write <{DSML}function_calls> and then\n",
    ],
    "glm": ["Write <tool_call> and then\n", GLM_PARIS.replace("days</arg_key>", "days<x>")],
    "seed": ["A <seed:tool_call> is"],
    "function_gemma": [
        *(one.join(GEMMA) for one in ("call:f{a:Paris}", "call:f{a:7e}", "call:f{a:1}}")),
        "<start_function_call> is a marker",
    ],
}
"""What is no call, or has two readings, stays text."""
EXAMPLES: list[tuple[str, str, Merged]] = [
    *((name, text, found) for name, rows in READ.items() for text, found in rows),
    *((name, text, [text]) for name, texts in KEPT.items() for text in texts),
]
