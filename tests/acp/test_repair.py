"""Calls that models write as text or wrongly: their places in a text that streams,
however it is cut; which are understood, and as what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helexa_acp.asking import Splitter
from helexa_acp.calls import TOOLS, NotUnderstood, understand
from helexa_acp.wire import CallMade, TextDelta, ThoughtDelta
from inference.protocol.generation import ToolDefinition
from inference.text.tool_calls import FORMATS
from inference.text.tool_calls.call_parser import CallArguments, CallStarted, TextPart
from tests.cases import each_case

SPECS = [tool.spec for tool in TOOLS]
LS = ("bash", {"command": "ls"})
CALLED_LS = '{"name": "bash", "arguments": {"command": "ls"}}'


@each_case(
    ("name", "written", "understood"),
    [
        ("read_file", '{"path": "a"}', ("read_file", {"path": "a"})),
        ("read_file", ' {"path": "a"}}}} ', ("read_file", {"path": "a"})),
        ("read_file", '{"path": "a\\ud800"}', ("read_file", {"path": "a?"})),
        ("list_dir", "", ("list_dir", {})),
        ("", '{"name": "list_dir", "arguments": null}', ("list_dir", {})),
        ("tool", '{"name": "bash", "parameters": {"command": "ls"}}', LS),
        ("", '{"name": "bash", "arguments": {"command": "a\nb"}}', ("bash", {"command": "a\nb"})),
        ("", '{"command": "ls"}', LS),
        ("", '{"path": "a", "content": "b"}', ("write_file", {"path": "a", "content": "b"})),
        ("", '{"path": "a", "limit": 3}', ("read_file", {"path": "a", "limit": 3})),
        ("", '{"pattern": "x"}', ("search", {"pattern": "x"})),
        ("", f'{{"type": "function", "function": {CALLED_LS}}}', LS),
        ("", f'{{"function": {CALLED_LS}}}', LS),
        *(
            ("", written, LS)
            for written in (
                *(CALLED_LS, '{"arguments": {"command": "ls"}}', f'{{"arguments": {CALLED_LS}}}'),
                *('{"arguments": {"name": "bash", "command": "ls"}}', CALLED_LS + "}}"),
                *('{"name": "bash", "command": "ls"}', CALLED_LS.replace('"bash"', '""')),
                '{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}',
            )
        ),
        ("", '{"name": "list_dir"}', ("list_dir", {})),
    ],
)
def test_understood(name: str, written: str, understood: tuple[str, dict[str, Any]]) -> None:
    assert understand(name, written, SPECS) == understood
    is_bare = '"name"' not in written and '"arguments"' not in written
    assert name or is_bare or read_by_the_server(written) == understood


@each_case(
    ("name", "written", "why"),
    [
        ("", '{"path": "a"}', "names no tool"),
        *(("", one, "names no tool") for one in ("{}", '{"arguments": {}}')),
        *(("", one, "fit none") for one in ('{"unheard": "of"}', '{"arguments": {"unheard": 1}}')),
        ("rm_rf", "{}", "no tool named 'rm_rf'"),
        ("", '{"name": "fly", "arguments": {}}', "no tool named 'fly'"),
        ("bash", '{"command": "ls"}}}}}', "not a JSON object"),
        ("bash", '["ls"]', "not a JSON object"),
        ("bash", '{"command": "ls', "not a JSON object"),
        ("bash", "[" * 100_000, "not a JSON object"),
        ("bash", '{"command": "ls", "command": "rm"}', "not a JSON object"),
        ("", '{"name": "bash", "arguments": {"command": "ls"}, "cwd": "/"}', "more beside"),
        ("", '{"name": "write_file", "path": "a", "content": "b"}}', "beginning is missing"),
        ("", '{"name": "bash", "arguments": {"command": "ls", "cwd": /srv}}', "not a JSON object"),
        ("", CALLED_LS[:-1] + ', "parameters": {}}', "more beside"),
        ("", '{"name": "bash", "arguments": [1]}', "not a JSON object"),
    ],
)
def test_not_understood(name: str, written: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        understand(name, written, SPECS)
    assert name or "no tool named" in why or read_by_the_server(written) is None


def read_by_the_server(written: str) -> tuple[str, Any] | None:
    """What it makes of the same text, which is a call by the same rules, or stays text."""
    offered = [
        ToolDefinition(name=spec.name, path="", parameters=spec.parameters) for spec in SPECS
    ]
    parser = FORMATS["hermes"].parser(offered)
    parts = [*parser.feed(f"<tool_call>{written}</tool_call>"), *parser.flush()]
    match parts:
        case [CallStarted(name=name), CallArguments(fragment=fragment)]:
            return name, json.loads(fragment)
    assert {type(part) for part in parts} == {TextPart}
    return None


T, H, C = TextDelta, ThoughtDelta, CallMade
CASES = [
    ("Hello.", [(T, "Hello.")]),
    ("<think>Hm.</think>\n\nHello.", [(H, "Hm."), (T, "Hello.")]),
    ("\n<think>\nHm.\n</think>Hello.", [(H, "\nHm.\n"), (T, "Hello.")]),
    ("[THINK]Hm.[/THINK]Hello.", [(H, "Hm."), (T, "Hello.")]),
    ("<think>cut off", [(H, "cut off")]),
    ("A <think> in prose", [(T, "A <think> in prose")]),
    ("<thin", [(T, "<thin")]),
    ("<b>bold</b>", [(T, "<b>bold</b>")]),
    ('a<tool_call>{"x"}</tool_call>b', [(T, "a"), (C, '{"x"}'), (T, "b")]),
    ("<tool_call>1</tool_call><tool_call>2</tool_call>", [(C, "1"), (C, "2")]),
    ("<think>h</think><tool_call>1</tool_call>", [(H, "h"), (C, "1")]),
    ("<tool_call>never closed", [(C, "never closed")]),
    ("1 < 2 <tool", [(T, "1 < 2 <tool")]),
    ("", []),
]


def split(pieces: list[str]) -> list[tuple[type, str]]:
    """Texts and thoughts joined; calls are one each."""
    splitter = Splitter()
    found = [piece for text in pieces for piece in splitter.feed(text)] + splitter.flush()
    joined: list[tuple[type, str]] = []
    for piece in found:
        kind = type(piece)
        text = piece.arguments if isinstance(piece, CallMade) else piece.text
        if joined and joined[-1][0] is kind is not CallMade:
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


@each_case(("text", "expected"), CASES)
def test_whole_and_character_by_character(text: str, expected: list[tuple[type, str]]) -> None:
    assert split([text]) == expected
    assert split(list(text)) == expected
