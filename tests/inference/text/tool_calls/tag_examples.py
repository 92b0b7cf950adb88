"""Answers with calls in tags or in Gemma's notation as models write them, and what is read."""

from __future__ import annotations

from inference.text.tool_calls.tag_formats import DSML
from tests.inference.text.tool_calls.calls import Merged, written
from tests.inference.text.tool_calls.json_examples import GRANITE_LS, LS

PARIS = ("get_weather", '{"city":"Paris","days":3}')
CALLED = ("get_weather", {"city": "Paris", "days": 3})
GLM_PARIS = written("glm", CALLED)
DSML_LS, DSML_PARIS = (
    written("dsml", call)
    .removeprefix(f"<{DSML}function_calls>\n")
    .partition(f"\n</{DSML}function")[0]
    for call in (("bash", {"command": "ls"}), CALLED)
)
DSML_SECTION = f"<{DSML}function_calls>\n", f"\n</{DSML}function_calls>"
QWEN_LS = "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>"


def _wrapped(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def _with(arguments: str) -> str:
    return _wrapped(f"<function=write_file>\n{arguments}</function>")


READ: dict[str, dict[str, tuple[str, Merged]]] = {
    "qwen_coder": {
        "several without the outer tags": (f"{QWEN_LS}\n{QWEN_LS}", [LS, LS]),
        "a value on the tag's line": (
            _with("<parameter=path>a</parameter>\n"),
            [("write_file", '{"path":"a"}')],
        ),
        "without the outer tags": (f"I look.\n\n{QWEN_LS}", ["I look.", LS]),
        "only the outer closing tag": (f"I look.\n{QWEN_LS}\n</tool_call>", ["I look.", LS]),
        "only the outer opening tag": (f"<tool_call>\n{QWEN_LS}", [LS]),
        "without the function's closing tag": (
            "<tool_call><function=bash><parameter=command>ls</parameter></tool_call> ok",
            [LS, "ok"],
        ),
        "one newline at either end is the format's": (
            _with("<parameter=path>\n\n a \n\n</parameter>\n"),
            [("write_file", '{"path":"\\n a \\n"}')],
        ),
        "an empty value": (
            _with("<parameter=path>\n</parameter>\n<parameter=mode></parameter>"),
            [("write_file", '{"path":"","mode":""}')],
        ),
        "values after their schema": (
            _with(
                "<parameter=mode>\n420\n</parameter>\n"
                "<parameter=tags>\n[\"a\", 'b']\n</parameter>\n"
                "<parameter=options>\n{'a': True}\n</parameter>\n"
            ),
            [("write_file", '{"mode":420,"tags":["a","b"],"options":{"a":true}}')],
        ),
        "what fits no type is a string": (
            _with("<parameter=mode>\nrw\n</parameter>\n<parameter=options>\n{a\n</parameter>\n"),
            [("write_file", '{"mode":"rw","options":"{a"}')],
        ),
        "an unknown argument is kept": (
            _with("<parameter=path>\na\n</parameter>\n<parameter=depth>\n3\n</parameter>\n"),
            [("write_file", '{"path":"a","depth":"3"}')],
        ),
        "tags inside a value": (
            _with(
                "<parameter=content>\n<function=demo>\n</function>\n</tool_call>\n</parameter>\n"
                "<parameter=path>\na\n</parameter>\n"
            ),
            [
                (
                    "write_file",
                    '{"content":"<function=demo>\\n</function>\\n</tool_call>","path":"a"}',
                )
            ],
        ),
    },
    "dsml": {
        "without its section": (DSML_LS, [LS]),
        "text that its tag calls text, and lists": (
            f'<{DSML}invoke name="write_file">\n'
            f'<{DSML}parameter name="mode" string="true">420</{DSML}parameter>\n'
            f'<{DSML}parameter name="tags" string="false">["a", "b"]</{DSML}parameter>\n'
            f"</{DSML}invoke>",
            [("write_file", '{"mode":"420","tags":["a","b"]}')],
        ),
        "a text in JSON": (DSML_LS.replace('"true">ls', '"false">"ls"'), [LS]),
        "no JSON where the tag declares it": (
            DSML_PARIS.replace(">3<", ">three<"),
            [("get_weather", '{"city":"Paris","days":"three"}')],
        ),
        "a tag without a type": (
            DSML_PARIS.replace(' string="true"', "").replace(' string="false"', ""),
            [PARIS],
        ),
    },
    "glm": {
        "without newlines": (GLM_PARIS.replace("\n", ""), [PARIS]),
        "values after their schema": (
            "<tool_call>write_file\n<arg_key>mode</arg_key><arg_value> 420 </arg_value>"
            '<arg_key>tags</arg_key><arg_value>["a", "b"]</arg_value></tool_call>',
            [("write_file", '{"mode":420,"tags":["a","b"]}')],
        ),
        "JSON between the tags": (f"<tool_call>{GRANITE_LS}</tool_call>", [LS]),
    },
    "function_gemma": {
        "spaces": (
            "<start_function_call> call:f { a : 1 , b : <escape> x <escape> }<end_function_call>",
            [("f", '{"a":1,"b":" x "}')],
        ),
        "keys between quote markers": (
            "<start_function_call>call:f{<escape>a b<escape>:1}<end_function_call>",
            [("f", '{"a b":1}')],
        ),
        "JSON": (
            '<start_function_call>call:f{"a": "x\\"y", "b": [1, 2]}<end_function_call>',
            [("f", '{"a":"x\\"y","b":[1,2]}')],
        ),
    },
}
KEPT: dict[str, dict[str, str]] = {
    "qwen_coder": {
        "an unknown tool without the outer tags": "Write <function=fly>\n</function> then",
        "the tag in prose": "Write <tool_call> and then",
        "JSON behind the name": _wrapped('<function=fly>{"a": 1}</function>'),
        "a name that does not end": "<tool_call>\n<function=a\n>",
        "a key that does not end": _with("<parameter=path>\na\n</parameter>\n<parameter=mode\n>"),
        "a broken tag between two arguments": _with(
            "<parameter=path>\na\n</parameter>\n<paramter=content>\nb\n</parameter>\n"
        ),
        "a broken closing tag": _with(
            "<parameter=path>\na\n</parmeter>\n<parameter=content>\nb\n</parameter>\n"
        ),
        "a key twice": _with(
            "<parameter=path>\na\n</parameter>\n<parameter=path>\nb\n</parameter>\n"
        ),
    },
    "dsml": {
        "white space in a tag that writes none": DSML_LS.replace('"true">', '"true" >').join(
            DSML_SECTION
        ),
        "the tag in prose": f"Write <{DSML}function_calls> and then\n",
    },
    "glm": {
        "the tag in prose": "Write <tool_call> and then\n",
        "a key without its end": GLM_PARIS.replace("days</arg_key>", "days<x>"),
    },
    "seed": {
        "the marker in prose": "A <seed:tool_call> is",
    },
    "function_gemma": {
        "a text without its markers": "<start_function_call>call:f{a:Paris}<end_function_call>",
        "what may be a broken number": "<start_function_call>call:f{a:7e}<end_function_call>",
        "the marker in prose": "<start_function_call> is a marker",
        "broken": "<start_function_call>call:f{a:1}}<end_function_call>",
    },
}
"""What is no call, or has two readings, stays text."""
