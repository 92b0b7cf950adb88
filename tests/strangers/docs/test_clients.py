"""The settings of docs/clients.md: filled in as a reader does, and tried with the real clients.

scripts/try-clients --dir CLIENTS
HELEXA_CLIENTS_DIR=CLIENTS manage.py test -m slow tests/strangers/docs/test_clients.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import each_case
from tests.live.clients.agent import Stage, try_agent
from tests.live.clients.agents import AGENTS
from tests.live.clients.documented import exported, filled_in, settings_of
from tests.live.clients.installed import Clients
from tests.live.scripted.server import ScriptedServe

AGENT_OF = {
    "claude-code": "Claude Code",
    "opencode": "opencode",
    "codex": "Codex",
    "qwen-code": "Qwen Code",
    "aider": "aider",
    "llm": "llm",
}
CLIENTS_DIR = os.environ.get("HELEXA_CLIENTS_DIR")


def test_placeholders_stand_alone() -> None:
    text = "export OPENAI_API_KEY=KEY OPENAI_MODEL=MODEL\nexport AT=http://127.0.0.1:31313/v1\n"
    filled = filled_in(text, url="http://gateway", model="m", key="k")
    assert exported(filled) == {
        "OPENAI_API_KEY": "k",
        "OPENAI_MODEL": "m",
        "AT": "http://gateway/v1",
    }


@each_case("scenario", AGENT_OF)
def test_settings_name_the_server_and_the_model(scenario: str) -> None:
    filled = settings_of(scenario, url="http://gateway:1", model="some-model", key="some-key")
    assert "http://gateway:1" in filled
    assert "some-model" in filled
    assert "31313" not in filled


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServe]:
    folder = tmp_path_factory.mktemp("clients")
    serve = ScriptedServe(folder / "var", folder / "scripts")
    try:
        serve.wait_ready()
        serve.models["hermes"].answers("Say hello", "Hello there.")
        yield serve
    finally:
        serve.end()


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.skipif(CLIENTS_DIR is None, reason="HELEXA_CLIENTS_DIR names no folder of clients")
@pytest.mark.parametrize("scenario", AGENT_OF)
def test_the_client_works_with_its_settings(
    scenario: str, scripted: ScriptedServe, tmp_path: Path
) -> None:
    assert CLIENTS_DIR is not None
    (agent,) = (one for one in AGENTS if one.name == AGENT_OF[scenario])
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    stage = Stage(
        clients=Clients(Path(CLIENTS_DIR)),
        url=scripted.url,
        model=scripted.models["hermes"],
        home=home,
        project=project,
    )
    rows = list(try_agent(agent, stage))
    assert rows
    assert [row for row in rows if row.problem is not None] == []
