"""A client that is a program of its own, the stage on which it is tried, and the scripted model's
answers: one scene for each feature. ``programs`` know the questions by heart: they are other
languages' files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.live.clients.documented import settings_of
from tests.live.clients.installed import Clients, NotInstalledError
from tests.live.clients.sdk_programs import Tried
from tests.live.scripted.model import ScriptedModel

AGENT_TIMEOUT_S = 120.0
MODEL, SMALL_CONTEXT, UNKNOWN = "hermes", "llama3", "nosuch"
WITHOUT_TOOLS = "opened-thinking"
"""Its template has no place for tools, as the default model's has none."""
API_KEY = "none"


SECRET = "The word is heron."
"""The text of the note that agents are to read."""

HERON = "It says heron."
SOUP_SCHEMA = {
    "type": "object",
    "properties": {"dish": {"type": "string"}},
    "required": ["dish"],
}
DISH = '{"dish": "soup", "steps": ["boil", "serve"]}'


def call_of(tool: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'


DISH_TOOLS = ("Dish", "json", "json_tool_call")
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


def rehearse_agent(model: ScriptedModel, question: str, tool: str, arguments: str) -> None:
    """The agent's question is answered by a call of ``tool``; what it then reads, by the word."""
    thought = "<think>\nRead it.\n</think>\n\nLet me look.\n"
    model.answers(question, thought + call_of(tool, arguments))
    model.answers(SECRET.removesuffix("."), HERON)


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
    version: Callable[[Clients], str]
    features: dict[str, Feature]


def try_agent(agent: Agent, stage: Stage) -> Iterator[Tried]:
    try:
        version = agent.version(stage.clients)
    except NotInstalledError as error:
        yield Tried(agent.name, "", "installed", str(error))
        return
    for name, attempt in agent.features.items():
        stage.note.write_text(f"{SECRET}\n")
        problem = None
        try:
            attempt(stage)
        except (AgentProblemError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        yield Tried(agent.name, version, name, problem)


def expect(wanted: str, answer: str) -> None:
    if wanted not in answer:
        raise AgentProblemError(f"no {wanted!r} in: {answer[-600:]}")
