"""Calls that models write wrongly: which are understood, and as what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helexa_acp.repair import NotUnderstood, Signature, Understood, understand
from helexa_acp.tools import TOOLS

SIGNATURES = [
    Signature(
        tool.spec.name,
        frozenset(tool.spec.parameters["properties"]),
        frozenset(tool.spec.parameters["required"]),
    )
    for tool in TOOLS
]


@pytest.mark.parametrize(
    ("name", "written", "understood"),
    [
        ("read_file", '{"path": "a"}', ("read_file", {"path": "a"})),
        ("read_file", ' {"path": "a"}}}} ', ("read_file", {"path": "a"})),
        ("list_dir", "", ("list_dir", {})),
        ("", '{"name": "bash", "arguments": {"command": "ls"}}', ("bash", {"command": "ls"})),
        (
            "",
            '{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}',
            ("bash", {"command": "ls"}),
        ),
        ("tool", '{"name": "bash", "parameters": {"command": "ls"}}', ("bash", {"command": "ls"})),
        ("", '{"name": "bash", "command": "ls"}', ("bash", {"command": "ls"})),
        ("", '{"command": "ls"}', ("bash", {"command": "ls"})),
        ("", '{"path": "a", "content": "b"}', ("write_file", {"path": "a", "content": "b"})),
        ("", '{"path": "a", "limit": 3}', ("read_file", {"path": "a", "limit": 3})),
        ("", '{"pattern": "x"}', ("search", {"pattern": "x"})),
    ],
)
def test_understood(name: str, written: str, understood: tuple[str, dict[str, Any]]) -> None:
    assert understand(name, written, SIGNATURES) == Understood(*understood)


@pytest.mark.parametrize(
    ("name", "written", "why"),
    [
        ("", '{"path": "a"}', "names no tool"),
        ("", "{}", "names no tool"),
        ("", '{"unheard": "of"}', "fit none"),
        ("rm_rf", "{}", "no tool named 'rm_rf'"),
        ("bash", '{"command": "ls"}}}}}', "not a JSON object"),
        ("bash", '["ls"]', "not a JSON object"),
        ("bash", '{"command": "ls', "not a JSON object"),
        ("bash", "[" * 100_000, "not a JSON object"),
    ],
)
def test_not_understood(name: str, written: str, why: str) -> None:
    found = understand(name, written, SIGNATURES)
    assert isinstance(found, NotUnderstood)
    assert why in found.why


FRAGMENTS = ['{"', '": ', '"', "}", "{", "[", "]", ", ", "name", "path", "command", "1", "bash"]


@given(
    st.sampled_from(["", "bash", "read_file", "x"]),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
)
def test_anything_may_come(name: str, written: str) -> None:
    found = understand(name, written, SIGNATURES)
    assert isinstance(found, Understood | NotUnderstood)


def test_surrogates_do_not_get_through() -> None:
    found = understand("read_file", '{"path": "a\\ud800"}', SIGNATURES)
    assert found == Understood("read_file", {"path": "a?"})
