"""Claude Code, run without a terminal."""

from __future__ import annotations

import json

from tests.live.clients.agent import MODEL, SMALL_CONTEXT, UNKNOWN, WITHOUT_TOOLS, Stage, expect
from tests.live.clients.documented import exported
from tests.live.clients.scenes import HERON, SOUP_SCHEMA, call_of, rehearse_agent


def claude(
    stage: Stage, question: str, *flags: str, model: str = MODEL, context: int | None = None
) -> str:
    """Runs claude without what it would send to its vendor beside the model's requests."""
    return stage.run(
        [stage.clients.npm_bin("claude"), "-p", question, *flags],
        **exported(stage.settings("claude-code", model)),
        **({} if context is None else {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(context)}),
        DISABLE_TELEMETRY="1",
        DISABLE_ERROR_REPORTING="1",
        DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_MAX_RETRIES="0",
    )


def claude_reads(stage: Stage) -> None:
    question = "Claude, read the note"
    rehearse_agent(stage.model, question, "Read", json.dumps({"file_path": str(stage.note)}))
    expect(HERON, claude(stage, question))


def claude_runs_a_command(stage: Stage) -> None:
    question = "Claude, print the note"
    command = {"command": "cat note.txt", "description": "Show the note"}
    rehearse_agent(stage.model, question, "Bash", json.dumps(command))
    events = claude(stage, question, "--output-format", "stream-json", "--verbose")
    expect('"type":"thinking"', events)
    expect(HERON, events)


def claude_makes_an_object(stage: Stage) -> None:
    """It asks by a tool of its own."""
    soup = '{"dish": "soup"}'
    stage.model.answers("Claude, a dish", call_of("StructuredOutput", soup))
    schema = json.dumps(SOUP_SCHEMA)
    answer = claude(stage, "Claude, a dish", "--output-format", "json", "--json-schema", schema)
    expect('"structured_output":{"dish":"soup"}', answer)


def claude_unknown_model(stage: Stage) -> None:
    answer = claude(stage, "Say hello", model=UNKNOWN)
    expect("It may not exist", answer)


def claude_context(stage: Stage) -> None:
    """The context that docs/clients.md documents for a model that the client does not know."""
    stage.model.answers("Claude, how long", "Long.")
    answer = claude(stage, "Claude, how long", "--output-format", "json")
    expect('"contextWindow":1000000', answer)
    bounded = claude(stage, "Claude, how long", "--output-format", "json", context=131072)
    expect('"contextWindow":131072', bounded)


def claude_without_tools(stage: Stage) -> None:
    expect("no place for tools", claude(stage, "Say hello", model=WITHOUT_TOOLS))


def claude_full_context(stage: Stage) -> None:
    expect("Prompt is too long", claude(stage, "Say hello", model=SMALL_CONTEXT))
