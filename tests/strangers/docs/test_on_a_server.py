"""Blocks that talk to a running server, on one real server with the default model; and the README's
``scripts/bench`` lines, each for one round of one row."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.live.serving import Serve, manage
from tests.strangers.docs.blocks import Block, commands_of
from tests.strangers.docs.newcomer import Newcomer, blocks_for, linked_checkout

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

SCOPES = "inference,usage:read,fleet:read,fleet:write"
NO_VERDICT = 2
"""``bench compare`` has too few samples for a verdict."""


@pytest.fixture(scope="module")
def key(server: Serve) -> str:
    environment = server.find("gateway").environ()
    manage(environment, "accounts", "create", "readers")
    made = manage(environment, "keys", "create", "readers", "--scopes", SCOPES, "--json")
    return str(json.loads(made)["key"])


@pytest.fixture(scope="module")
def neuron(server: Serve) -> str:
    (found, *_) = server.wait(lambda: server.health()["neurons"], "a neuron is reported")
    return str(found["name"])


@pytest.fixture(scope="module")
def newcomer(
    server: Serve, key: str, neuron: str, tmp_path_factory: pytest.TempPathFactory
) -> Newcomer:
    rewrites = {
        "http://127.0.0.1:31313": server.url,
        "http://gateway:31313": server.url,
        "http://gpu-box:8080": server.url,
        "HELEXA_API_KEY=hx-…": f"HELEXA_API_KEY={key}",
        "'ssh {} sudo apt-get install --yes helexa-neuron' beast benjy": (
            f"true --question 'What is the capital of France?' --word Paris {neuron}"
        ),
        # What would take half an hour on a processor.
        "bench once": "bench once --samples 2 --scenario chat:128 --max-tokens 8",
        # It ends with 1 where this machine's disk is nearly full.
        "manage.py status  ": "manage.py status || test $? = 1  ",
        "beast@0.2.0": neuron,
        "beast": neuron,
    }
    folder = linked_checkout(tmp_path_factory.mktemp("newcomer") / "helexa")
    environment = {"HELEXA_DATA_DIR": str(server.data_dir)}
    return Newcomer(folder, rewrites=rewrites, environment=environment)


@pytest.mark.parametrize("block", blocks_for("serve"), ids=str)
def test_a_block_works_on_a_server(newcomer: Newcomer, block: Block) -> None:
    output = newcomer.paste(block)
    if "capital of France" in block.text:
        assert "Paris" in output


def test_the_bench_measures_reports_and_compares(newcomer: Newcomer) -> None:
    """There is nothing to compare yet of one build: an exit code of its own."""
    (block,) = blocks_for("bench")
    for line in newcomer.text_of(block).splitlines():
        output = newcomer.run(line, exit_codes=(0, NO_VERDICT) if "bench compare" in line else (0,))
        assert output.strip() or "bench compare" in line, line


def test_the_models_file_can_be_imported(newcomer: Newcomer, tmp_path: Path) -> None:
    """What it would change is shown. To change it would have a model downloaded."""
    (block,) = blocks_for("models-file")
    file = tmp_path / "models.toml"
    file.write_text(newcomer.text_of(block))
    output = newcomer.run(f"python3 manage.py models import {file}")
    assert "qwen3-8b-gguf" in output
    assert "gpt-4o-mini" in output


ROW = "decode, 1 at once"


def shortened(line: str) -> str:
    line = re.sub(r" --rounds \d+", "", line)
    return line.replace("scripts/bench", f"scripts/bench --rounds 1 --only '{ROW}'")


@pytest.mark.parametrize("line", commands_of(*blocks_for("bench-script")))
def test_the_bench_measures_what_is_installed(line: str, tmp_path: Path) -> None:
    newcomer = Newcomer(linked_checkout(tmp_path / "helexa"), rewrites={}, environment={})
    output = newcomer.run(shortened(line))
    if "run.json" in line:
        output = (newcomer.folder / "run.json").read_text()
        assert ROW in json.dumps(json.loads(output))
    assert "decode" in output
