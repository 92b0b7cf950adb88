"""Blocks that talk to a running server, on one real server with the default model; and the README's
``scripts/bench`` lines, each for one round of one row.

What readers put in for their own (an address, a name) is put in here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.live.serving import REPOSITORY_DIR, Serve, serve_environment
from tests.strangers.docs.blocks import Block, all_blocks, commands_of

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

BLOCK_TIMEOUT_S = 240.0
OUTPUT_TAIL_CHARACTERS = 3000
SCOPES = "inference,usage:read,fleet:read,fleet:write"
NO_VERDICT = 2
"""``bench compare`` has too few samples for a verdict."""
ROW = "decode, 1 at once"


def blocks_for(scenario: str) -> list[Block]:
    return [one for one in all_blocks() if one.scenario == scenario]


def linked_checkout(folder: Path) -> Path:
    """``folder`` with a link to each file and folder of this checkout but those that runs write."""
    folder.mkdir()
    for path in REPOSITORY_DIR.iterdir():
        if path.name not in (".git", ".venv", "var"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def pasted(
    text: str,
    folder: Path,
    *,
    language: str = "sh",
    environment: Mapping[str, str] | None = None,
    exit_codes: Sequence[int] = (0,),
) -> str:
    """What it prints. Every command in a block of shell has to succeed."""
    shell = ["bash", "-euo", "pipefail", "-c", text]
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", text] if language == "python" else shell,
        cwd=folder,
        env=serve_environment() | {"PATH": programs} | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BLOCK_TIMEOUT_S,
        check=False,
    )
    report = f"{text}\n--- exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode in exit_codes, report[-OUTPUT_TAIL_CHARACTERS:]
    assert "Traceback" not in done.stderr, report[-OUTPUT_TAIL_CHARACTERS:]
    return done.stdout


@pytest.fixture(scope="module")
def filled_in(server: Serve) -> Callable[[str], str]:
    """With the server's address, its neuron, and the key of an account that no page names."""

    def manage(*words: str) -> str:
        command = [sys.executable, str(REPOSITORY_DIR / "manage.py"), *words]
        environment = server.find("gateway").environ()
        return subprocess.check_output(command, env=environment, text=True, timeout=300)

    manage("accounts", "create", "readers")
    key = json.loads(manage("keys", "create", "readers", "--scopes", SCOPES, "--json"))["key"]
    neuron = str(server.reported_neurons()[0]["name"])
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
        "beast@0.2.0": neuron,
        "beast": neuron,
    }

    def filled_in(text: str) -> str:
        for documented, actual in rewrites.items():
            text = text.replace(documented, actual)
        return text

    return filled_in


Paste = Callable[..., str]


@pytest.fixture(scope="module")
def paste(server: Serve, tmp_path_factory: pytest.TempPathFactory) -> Paste:
    folder = linked_checkout(tmp_path_factory.mktemp("newcomer") / "helexa")
    environment = {"HELEXA_DATA_DIR": str(server.data_dir)}
    return lambda text, **options: pasted(text, folder, environment=environment, **options)


@pytest.mark.parametrize("block", blocks_for("serve"), ids=str)
def test_a_block_works_on_a_server(
    filled_in: Callable[[str], str], paste: Paste, block: Block
) -> None:
    output = paste(filled_in(block.text), language=block.language)
    assert "capital of France" not in block.text or "Paris" in output


def test_the_bench_measures_reports_and_compares(
    filled_in: Callable[[str], str], paste: Paste
) -> None:
    """There is nothing to compare yet of one build: an exit code of its own."""
    (block,) = blocks_for("bench")
    for line in filled_in(block.text).splitlines():
        output = paste(line, exit_codes=(0, NO_VERDICT) if "bench compare" in line else (0,))
        assert output.strip() or "bench compare" in line, line


def test_the_models_file_can_be_imported(paste: Paste, tmp_path: Path) -> None:
    """What it would change is shown. To change it would have a model downloaded."""
    (block,) = blocks_for("models-file")
    (tmp_path / "models.toml").write_text(block.text)
    output = paste(f"python3 manage.py models import {tmp_path}/models.toml")
    assert "qwen3-8b-gguf" in output and "gpt-4o-mini" in output


@pytest.mark.parametrize("line", commands_of(*blocks_for("bench-script")))
def test_the_bench_measures_what_is_installed(line: str, tmp_path: Path) -> None:
    """One round of one row, of what can be imported."""
    folder = linked_checkout(tmp_path / "helexa")
    short = re.sub(r" --rounds \d+", "", line)
    short = short.replace("scripts/bench", f"scripts/bench --rounds 1 --only '{ROW}'")
    output = pasted(short, folder)
    if "run.json" in line:
        output = (folder / "run.json").read_text()
        assert ROW in json.dumps(json.loads(output))
    assert "decode" in output
