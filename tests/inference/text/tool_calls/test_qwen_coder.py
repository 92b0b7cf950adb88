"""Answers seen in the field, in the Qwen-Coder format."""

from __future__ import annotations

from tests.cases import each_case
from tests.inference.text.tool_calls.calls import FORMATS, Merged, read

LS = "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>"
LIST_FILES = ("bash", '{"command":"ls"}')


def _wrapped(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def _with(arguments: str, name: str = "write_file") -> str:
    return _wrapped(f"<function={name}>\n{arguments}</function>")


EXAMPLES: dict[str, tuple[str, Merged]] = {
    "one call": (_wrapped(LS), [LIST_FILES]),
    "text around it": (f"I look.\n\n{_wrapped(LS)}\nDone.", ["I look.", LIST_FILES, "Done."]),
    "several calls": (f"{_wrapped(LS)}\n{_wrapped(LS)}", [LIST_FILES, LIST_FILES]),
    "without the outer tags": (f"I look.\n\n{LS}", ["I look.", LIST_FILES]),
    "several without the outer tags": (f"{LS}\n{LS}", [LIST_FILES, LIST_FILES]),
    "only the outer closing tag": (f"I look.\n{LS}\n</tool_call>", ["I look.", LIST_FILES]),
    "only the outer opening tag": (f"<tool_call>\n{LS}", [LIST_FILES]),
    "without the function's closing tag": (
        "<tool_call><function=bash><parameter=command>ls</parameter></tool_call> ok",
        [LIST_FILES, "ok"],
    ),
    "no arguments": (_wrapped("<function=now>\n</function>"), [("now", "{}")]),
    "an unknown tool": (_wrapped("<function=fly>\n</function>"), [("fly", "{}")]),
    "an unknown tool without the outer tags": (
        "Write <function=fly>\n</function> then",
        ["Write <function=fly>\n</function> then"],
    ),
    "one newline at either end is the format's": (
        _with("<parameter=path>\n\n a \n\n</parameter>\n"),
        [("write_file", '{"path":"\\n a \\n"}')],
    ),
    "a value on the tag's line": (
        _with("<parameter=path>a</parameter>\n"),
        [("write_file", '{"path":"a"}')],
    ),
    "an empty value": (
        _with("<parameter=path>\n</parameter>\n<parameter=mode></parameter>"),
        [("write_file", '{"path":"","mode":""}')],
    ),
    "a string that looks like a number": (
        _with("<parameter=path>\n007\n</parameter>\n"),
        [("write_file", '{"path":"007"}')],
    ),
    "values after their schema": (
        _with(
            "<parameter=mode>\n420\n</parameter>\n<parameter=tags>\n[\"a\", 'b']\n</parameter>\n"
            "<parameter=options>\n{'a': True}\n</parameter>\n"
        ),
        [("write_file", '{"mode":420,"tags":["a","b"],"options":{"a":true}}')],
    ),
    "null where it is allowed": (
        _with("<parameter=mode>\nnull\n</parameter>\n"),
        [("write_file", '{"mode":null}')],
    ),
    "what fits no type is a string": (
        _with("<parameter=mode>\nrw\n</parameter>\n<parameter=options>\n{a\n</parameter>\n"),
        [("write_file", '{"mode":"rw","options":"{a"}')],
    ),
    "an unknown argument is kept": (
        _with("<parameter=path>\na\n</parameter>\n<parameter=depth>\n3\n</parameter>\n"),
        [("write_file", '{"path":"a","depth":"3"}')],
    ),
    "quotes, line breaks and backslashes": (
        _with('<parameter=content>\n"a"\\n\n\tb</c>\n</parameter>\n'),
        [("write_file", '{"content":"\\"a\\"\\\\n\\n\\tb</c>"}')],
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
    "an argument's closing tag inside a value": (
        _with("<parameter=content>\na </parameter> </b>\n</parameter>\n"),
        [("write_file", '{"content":"a </parameter> </b>"}')],
    ),
    "JSON between the outer tags": (
        _wrapped('{"name": "bash", "arguments": {"command": "ls"}}'),
        [LIST_FILES],
    ),
    "the tag in prose": ("Write <tool_call> and then", ["Write <tool_call> and then"]),
    "JSON behind the name": (
        _wrapped('<function=fly>{"a": 1}</function>'),
        [_wrapped('<function=fly>{"a": 1}</function>')],
    ),
    "a name that does not end": ("<tool_call>\n<function=a\n>", ["<tool_call>\n<function=a\n>"]),
    "a key that does not end": (
        _with("<parameter=path>\na\n</parameter>\n<parameter=mode\n>"),
        [_with("<parameter=path>\na\n</parameter>\n<parameter=mode\n>")],
    ),
    "a broken tag between two arguments": (
        _with("<parameter=path>\na\n</parameter>\n<paramter=content>\nb\n</parameter>\n"),
        [_with("<parameter=path>\na\n</parameter>\n<paramter=content>\nb\n</parameter>\n")],
    ),
    "a broken closing tag": (
        _with("<parameter=path>\na\n</parmeter>\n<parameter=content>\nb\n</parameter>\n"),
        [_with("<parameter=path>\na\n</parmeter>\n<parameter=content>\nb\n</parameter>\n")],
    ),
    "a key twice": (
        _with("<parameter=path>\na\n</parameter>\n<parameter=path>\nb\n</parameter>\n"),
        [_with("<parameter=path>\na\n</parameter>\n<parameter=path>\nb\n</parameter>\n")],
    ),
    "cut off in the name": ("<tool_call>\n<function=ba", ["<tool_call>\n<function=ba"]),
    "cut off after the name": (
        "<tool_call>\n<function=now>\n<par",
        ["<tool_call>\n<function=now>\n<par"],
    ),
    "cut off in a text": (
        "<tool_call>\n<function=bash>\n<parameter=command>\nls -\n</para",
        ["<tool_call>\n<function=bash>\n<parameter=command>\nls -\n</para"],
    ),
    "cut off in another value": (
        "<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=mode>\n42",
        ["<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=mode>\n42"],
    ),
    "cut off behind a value": (
        "<function=write_file>\n<parameter=mode>\n42\n</parameter>\n</func",
        ["<function=write_file>\n<parameter=mode>\n42\n</parameter>\n</func"],
    ),
}


@each_case("name", EXAMPLES)
def test_example(name: str) -> None:
    text, expected = EXAMPLES[name]
    assert read(FORMATS["qwen_coder"], text) == expected
