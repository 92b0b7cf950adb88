"""Codex, run without a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.live.clients import notes_server
from tests.live.clients.agent import (
    API_KEY,
    MODEL,
    UNKNOWN,
    WITHOUT_TOOLS,
    AgentProblemError,
    Stage,
    expect,
)
from tests.live.clients.scenes import HERON, SOUP_SCHEMA, rehearse_agent

CODEX_SETTINGS = """
[analytics]
enabled = false
[mcp_servers.{notes}]
command = "{python}"
args = ["{notes_server}", "{note}"]
"""
SKIP_GIT = ("--skip-git-repo-check",)
UNATTENDED = ("--dangerously-bypass-approvals-and-sandbox",)
"""Codex's own sandbox needs rights that a container lacks."""


def codex(stage: Stage, question: str, *flags: str | Path, model: str = MODEL) -> str:
    settings_dir = stage.home / "codex"
    settings_dir.mkdir(exist_ok=True)
    settings = stage.settings("codex", model) + CODEX_SETTINGS.format(
        notes=notes_server.NAME,
        python=sys.executable,
        notes_server=notes_server.__file__,
        note=stage.note,
    )
    (settings_dir / "config.toml").write_text(settings)
    return stage.run(
        [stage.clients.npm_bin("codex"), "exec", *UNATTENDED, *SKIP_GIT, *flags, question],
        CODEX_HOME=str(settings_dir),
        HELEXA_API_KEY=API_KEY,
    )


def codex_reads(stage: Stage) -> None:
    question = "Codex, read the note"
    rehearse_agent(stage.model, question, "exec_command", '{"cmd": "cat note.txt"}')
    expect(HERON, codex(stage, question))


def codex_asks_an_mcp_server(stage: Stage) -> None:
    question = "Codex, ask for the note"
    tool = f"mcp__{notes_server.NAME}.{notes_server.TOOL}"
    rehearse_agent(stage.model, question, tool, "{}")
    expect(HERON, codex(stage, question))


def codex_over_a_websocket(stage: Stage) -> None:
    """Where that fails it falls back to HTTP, and reports it."""
    question = "Codex, read the note over a socket"
    rehearse_agent(stage.model, question, "exec_command", '{"cmd": "cat note.txt"}')
    answer = codex(stage, question, "-c", "model_providers.helexa.supports_websockets=true")
    expect(HERON, answer)
    if "WebSocket" in answer:
        raise AgentProblemError(answer[-600:])


def codex_makes_an_object(stage: Stage) -> None:
    schema = stage.home / "schema.json"
    schema.write_text(json.dumps(SOUP_SCHEMA | {"additionalProperties": False}))
    stage.model.answers("Codex, a dish", '{"dish": "soup"}')
    expect('{"dish": "soup"}', codex(stage, "Codex, a dish", "--output-schema", schema))


def codex_unknown_model(stage: Stage) -> None:
    expect("does not exist here", codex(stage, "Say hello", model=UNKNOWN))


def codex_without_tools(stage: Stage) -> None:
    expect("no place for tools", codex(stage, "Say hello", model=WITHOUT_TOOLS))
