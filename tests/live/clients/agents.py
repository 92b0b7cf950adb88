"""Clients that are programs of their own: agents in a terminal, run without one.

Each reads a note with a tool of its own, because the model asks it to, and repeats the note's text.
"""

from __future__ import annotations

import json

from tests.live.clients.agent import (
    MODEL,
    UNKNOWN,
    WITHOUT_TOOLS,
    Agent,
    AgentProblemError,
    Stage,
    expect,
)
from tests.live.clients.claude import (
    claude_context,
    claude_full_context,
    claude_makes_an_object,
    claude_reads,
    claude_runs_a_command,
    claude_unknown_model,
    claude_without_tools,
)
from tests.live.clients.codex import (
    codex_asks_an_mcp_server,
    codex_makes_an_object,
    codex_over_a_websocket,
    codex_reads,
    codex_unknown_model,
    codex_without_tools,
)
from tests.live.clients.documented import exported
from tests.live.clients.scenes import HERON, call_of, rehearse_agent

# opencode.


def opencode(stage: Stage, question: str, model: str = MODEL) -> str:
    settings = json.loads(stage.settings("opencode", model))
    settings |= {"share": "disabled", "autoupdate": False}
    (stage.project / "opencode.json").write_text(json.dumps(settings))
    return stage.run(
        [stage.clients.npm_bin("opencode"), "run", "-m", f"helexa/{model}", question],
        OPENCODE_DISABLE_AUTOUPDATE="1",
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_LSP_DOWNLOAD="1",
        OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
    )


def opencode_reads(stage: Stage) -> None:
    question = "opencode, read the note"
    stage.model.answers("title generator", "A note")
    rehearse_agent(stage.model, question, "read", json.dumps({"filePath": str(stage.note)}))
    expect(HERON, opencode(stage, question))


def opencode_unknown_model(stage: Stage) -> None:
    expect("does not exist here", opencode(stage, "Say hello", UNKNOWN))


def opencode_without_tools(stage: Stage) -> None:
    expect("no place for tools", opencode(stage, "Say hello", WITHOUT_TOOLS))


# Qwen Code, aider and llm.


def qwen_reads(stage: Stage) -> None:
    question = "Qwen, read the note"
    rehearse_agent(stage.model, question, "read_file", json.dumps({"file_path": str(stage.note)}))
    answer = stage.run(
        [stage.clients.npm_bin("qwen"), "--auth-type", "openai", "-y", "-p", question],
        **exported(stage.settings("qwen-code", MODEL)),
        QWEN_TELEMETRY_ENABLED="false",
    )
    expect(HERON, answer)


def aider_edits(stage: Stage) -> None:
    stage.model.answers("Aider, change the note", "note.txt\n```\nThe word is egret.\n```\n")
    flags = (
        *("--model", f"openai/{MODEL}", "--edit-format", "whole", "--no-git", "--yes-always"),
        *("--no-check-update", "--no-show-release-notes", "--no-show-model-warnings"),
        *("--analytics-disable", "--message", "Aider, change the note"),
    )
    answer = stage.run(
        [stage.clients.python_bin("aider", "aider"), *flags, "note.txt"],
        **exported(stage.settings("aider", MODEL)),
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    if "egret" not in stage.note.read_text():
        raise AgentProblemError(answer[-600:])


def llm(stage: Stage, *words: str) -> str:
    settings_dir = stage.home / "llm"
    settings_dir.mkdir(exist_ok=True)
    file = settings_dir / "extra-openai-models.yaml"
    file.write_text(stage.settings("llm", MODEL))
    return stage.run(
        [stage.clients.python_bin("llm", "llm"), "-m", "helexa", *words],
        LLM_USER_PATH=str(settings_dir),
    )


def llm_answers(stage: Stage) -> None:
    expect("Hello there.", llm(stage, "Say hello"))


def llm_makes_an_object(stage: Stage) -> None:
    stage.model.answers("llm, a dish", '{"dish": "soup"}')
    expect('{"dish": "soup"}', llm(stage, "--schema", "dish str", "llm, a dish"))


def llm_calls_a_tool(stage: Stage) -> None:
    stage.model.answers("llm, the version", call_of("llm_version", "{}"))
    version = stage.clients.python_version("llm", "llm")
    stage.model.answers(f"<tool_response>\n{version}", HERON)
    expect(HERON, llm(stage, "--tool", "llm_version", "llm, the version"))


AGENTS = (
    Agent(
        "Claude Code",
        lambda clients: clients.npm_version("@anthropic-ai/claude-code"),
        {
            "tool, thinking, stream": claude_reads,
            "another tool, as events": claude_runs_a_command,
            "structured output": claude_makes_an_object,
            "unknown model": claude_unknown_model,
            "full context": claude_full_context,
            "context of a model that it does not know": claude_context,
            "model without tools": claude_without_tools,
        },
    ),
    Agent(
        "opencode",
        lambda clients: clients.npm_version("opencode-ai"),
        {
            "tool, stream": opencode_reads,
            "unknown model": opencode_unknown_model,
            "model without tools": opencode_without_tools,
        },
    ),
    Agent(
        "Codex",
        lambda clients: clients.npm_version("@openai/codex"),
        {
            "tool, reasoning, stream": codex_reads,
            "MCP server": codex_asks_an_mcp_server,
            "WebSocket": codex_over_a_websocket,
            "structured output": codex_makes_an_object,
            "unknown model": codex_unknown_model,
            "model without tools": codex_without_tools,
        },
    ),
    Agent(
        "Qwen Code",
        lambda clients: clients.npm_version("@qwen-code/qwen-code"),
        {"tool, stream": qwen_reads},
    ),
    Agent(
        "aider",
        lambda clients: clients.python_version("aider-chat", "aider"),
        {"edit": aider_edits},
    ),
    Agent(
        "llm",
        lambda clients: clients.python_version("llm", "llm"),
        {"stream": llm_answers, "schema": llm_makes_an_object, "tool": llm_calls_a_tool},
    ),
)
