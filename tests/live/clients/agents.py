"""Clients that are programs of their own: agents in a terminal, run without one.

Each reads a note with a tool of its own, because the model asks it to, and repeats the note's text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.acp import mcp_server
from tests.live.clients.sdk_programs import Clients, NotInstalledError, Tried
from tests.live.scripted.model import ScriptedModel
from tests.strangers.docs.blocks import exported, settings_of

AGENT_TIMEOUT_S = 120.0
MODEL, SMALL_CONTEXT, UNKNOWN = "hermes", "small", "nosuch"
WITHOUT_TOOLS = "opened-thinking"
"""Its template has no place for tools, as the default model's has none."""
API_KEY = "none"


SECRET = "The word is heron."
"""The text of the note that agents are to read."""

HERON = "It says heron."
SOUP, COMPACT_SOUP = '{"dish": "soup"}', '{"dish":"soup"}'
SOUP_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"dish": {"type": "string"}},
        "required": ["dish"],
        "additionalProperties": False,
    }
)
DISH = '{"dish": "soup", "steps": ["boil", "serve"]}'


def call_of(tool: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'


DISH_TOOLS = ("Dish", "PartialDish", "final_result", "json", "json_tool_call")
"""What clients name a tool that stands for an object."""

SCENES = {
    "Say hello": "Hello there.",
    "What is two and two": "<think>\nTwo and two.\n</think>\n\nFour.",
    "A dish as JSON": DISH,
    **{f"A dish by {tool}": call_of(tool, DISH) for tool in DISH_TOOLS},
    "weather in Oslo": "One moment.\n" + call_of("get_weather", '{"city": "Oslo"}'),
    "snow at noon": "It snows in Oslo.",
}
"""Later ones count before earlier ones: a conversation continues with its tool's result."""


def rehearse(model: ScriptedModel) -> None:
    for when, answer in SCENES.items():
        model.answers(when, answer)


class AgentProblemError(Exception):
    """The problem that the table prints."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where an agent runs: a home and a folder of its own, with the note in it."""

    clients: Clients
    url: str
    model: ScriptedModel
    home: Path
    project: Path

    @property
    def note(self) -> Path:
        return self.project / "note.txt"

    def settings(self, scenario: str, model: str) -> str:
        """Returns the settings that docs/clients.md has."""
        return settings_of(scenario, url=self.url, model=model, key=API_KEY)

    def run(self, command: list[str | Path], **env: str) -> str:
        """All that it prints, whatever its exit code."""
        own = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config")}
        ended = subprocess.run(
            command,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"} | own | env,
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=AGENT_TIMEOUT_S,
        )
        return ended.stdout


Feature = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    package: str
    features: dict[str, Feature]
    environment: str = "npm"


def try_agent(agent: Agent, stage: Stage) -> Iterator[Tried]:
    try:
        client = f"{agent.name} {stage.clients.version(agent.package, agent.environment)}"
    except NotInstalledError as error:
        yield Tried(agent.name, "installed", str(error))
        return
    for name, attempt in agent.features.items():
        stage.note.write_text(f"{SECRET}\n")
        problem = None
        try:
            attempt(stage)
        except (AgentProblemError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        yield Tried(client, name, problem)


def expect(wanted: str, answer: str) -> None:
    if wanted not in answer:
        raise AgentProblemError(f"no {wanted!r} in: {answer[-600:]}")


def greeted(expected: str, client: Callable[..., str], **changes: str) -> Feature:
    return lambda stage: expect(expected, client(stage, "Say hello", **changes))


def reads(
    client: Callable[..., str],
    tool: str,
    *flags: str,
    wants: str = HERON,
    unwanted: str = "Traceback",
    **arguments: str,
) -> Feature:
    """It reads the note by ``tool``; ``{note}`` in the arguments is where that lies."""

    def attempt(stage: Stage) -> None:
        question = f"{client.__name__}, read the note"
        given = {name: value.format(note=stage.note) for name, value in arguments.items()}
        thought = "<think>\nRead it.\n</think>\n\nLet me look.\n"
        stage.model.answers("title generator", "A note")
        stage.model.answers(question, thought + call_of(tool, json.dumps(given)))
        stage.model.answers(SECRET.removesuffix("."), HERON)
        answer = client(stage, question, *flags)
        expect(HERON, answer)
        expect(wants, answer)
        if unwanted in answer:
            raise AgentProblemError(answer[-600:])

    return attempt


# Claude Code.


def claude(stage: Stage, question: str, *flags: str, model: str = MODEL) -> str:
    """Runs claude without what it would send to its vendor beside the model's requests."""
    return stage.run(
        [stage.clients.npm_bin("claude"), "-p", question, *flags],
        **exported(stage.settings("claude-code", model)),
        DISABLE_TELEMETRY="1",
        DISABLE_ERROR_REPORTING="1",
        DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_MAX_RETRIES="0",
    )


# Codex.

CODEX_SETTINGS = """
[analytics]
enabled = false
[mcp_servers.{notes}]
command = "{python}"
args = ["{server}", "{notes}", "{note}"]
"""
SKIP_GIT = ("--skip-git-repo-check",)
UNATTENDED = ("--dangerously-bypass-approvals-and-sandbox",)
"""Codex's own sandbox needs rights that a container lacks."""


def codex(stage: Stage, question: str, *flags: str, model: str = MODEL) -> str:
    settings_dir = stage.home / "codex"
    settings_dir.mkdir(exist_ok=True)
    settings = stage.settings("codex", model) + CODEX_SETTINGS.format(
        notes=mcp_server.NOTES, python=sys.executable, server=mcp_server.__file__, note=stage.note
    )
    (settings_dir / "config.toml").write_text(settings)
    return stage.run(
        [stage.clients.npm_bin("codex"), "exec", *UNATTENDED, *SKIP_GIT, *flags, question],
        CODEX_HOME=str(settings_dir),
        HELEXA_API_KEY=API_KEY,
    )


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


# Qwen Code, aider and llm.


def qwen(stage: Stage, question: str) -> str:
    return stage.run(
        [stage.clients.npm_bin("qwen"), "--auth-type", "openai", "-y", "-p", question],
        **exported(stage.settings("qwen-code", MODEL)),
        QWEN_TELEMETRY_ENABLED="false",
    )


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


def llm(stage: Stage, question: str, *flags: str) -> str:
    settings_dir = stage.home / "llm"
    settings_dir.mkdir(exist_ok=True)
    file = settings_dir / "extra-openai-models.yaml"
    file.write_text(stage.settings("llm", MODEL))
    return stage.run(
        [stage.clients.python_bin("llm", "llm"), "-m", "helexa", *flags, question],
        LLM_USER_PATH=str(settings_dir),
    )


def llm_calls_a_tool(stage: Stage) -> None:
    stage.model.answers("llm, the version", call_of("llm_version", "{}"))
    version = stage.clients.version("llm", "llm")
    stage.model.answers(f"<tool_response>\n{version}", HERON)
    expect(HERON, llm(stage, "llm, the version", "--tool", "llm_version"))


def makes(client: Callable[..., str], answer: str, wanted: str, *flags: str) -> Feature:
    """It makes an object by the schema that ``flags`` name; ``{home}`` in them is its home."""

    def attempt(stage: Stage) -> None:
        question = f"{client.__name__}, a dish"
        stage.model.answers(question, answer)
        (stage.home / "schema.json").write_text(SOUP_SCHEMA)
        given = [flag.replace("{home}", str(stage.home)) for flag in flags]
        expect(wanted, client(stage, question, *given))

    return attempt


AGENTS = (
    Agent(
        "Claude Code",
        "@anthropic-ai/claude-code",
        {
            "tool, thinking, as events": reads(
                *(claude, "Read", "--output-format", "stream-json", "--verbose"),
                wants='"type":"thinking"',
                file_path="{note}",
            ),
            "structured output": makes(  # it asks by a tool of its own
                *(claude, call_of("StructuredOutput", SOUP), f'"structured_output":{COMPACT_SOUP}'),
                *("--output-format", "json", "--json-schema", SOUP_SCHEMA),
            ),
            "unknown model": greeted("It may not exist", claude, model=UNKNOWN),
            "full context": greeted("Prompt is too long", claude, model=SMALL_CONTEXT),
            "model without tools": greeted("no place for tools", claude, model=WITHOUT_TOOLS),
        },
    ),
    Agent(
        "opencode",
        "opencode-ai",
        {
            "tool, stream": reads(opencode, "read", filePath="{note}"),
            "unknown model": greeted("does not exist here", opencode, model=UNKNOWN),
            "model without tools": greeted("no place for tools", opencode, model=WITHOUT_TOOLS),
        },
    ),
    Agent(
        "Codex",
        "@openai/codex",
        {
            "tool, reasoning, stream": reads(codex, "exec_command", cmd="cat note.txt"),
            "MCP server": reads(codex, f"mcp__{mcp_server.NOTES}.{mcp_server.READ}"),
            # Where that fails it falls back to HTTP, and reports it.
            "WebSocket": reads(
                *(codex, "exec_command", "-c", "model_providers.helexa.supports_websockets=true"),
                unwanted="WebSocket",
                cmd="cat note.txt",
            ),
            "structured output": makes(codex, SOUP, SOUP, "--output-schema", "{home}/schema.json"),
            "unknown model": greeted("does not exist here", codex, model=UNKNOWN),
            "model without tools": greeted("no place for tools", codex, model=WITHOUT_TOOLS),
        },
    ),
    Agent(
        "Qwen Code",
        "@qwen-code/qwen-code",
        {"tool, stream": reads(qwen, "read_file", file_path="{note}")},
    ),
    Agent("aider", "aider-chat", {"edit": aider_edits}, "aider"),
    Agent(
        "llm",
        "llm",
        {
            "stream": greeted("Hello there.", llm),
            "schema": makes(llm, SOUP, SOUP, "--schema", "dish str"),
            "tool": llm_calls_a_tool,
        },
        "llm",
    ),
)
