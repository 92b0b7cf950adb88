"""The rolling deploy, and whether a neuron is fit to serve, with a ``manage.py`` that writes down
what it is asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cases import each_case

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
MANAGE = """
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
words = " ".join(word for word in sys.argv[1:] if "/" not in word)
with (folder / "asked").open("a") as file:
    file.write(words + "\\n")
answers = json.loads((folder / "answers").read_text())
for index, (start, text, code) in enumerate(answers):
    if words.startswith(start):
        if code:  # once
            (folder / "answers").write_text(json.dumps(answers[:index] + answers[index + 1:]))
        print(text, file=sys.stderr if code else sys.stdout)
        sys.exit(code)
"""
LIST, EXPECT_BENJY = "neurons list", "deploy_gate --expect --neuron benjy"


def ran(
    folder: Path, script: str, *words: str, answers: list[tuple[str, Any, int]]
) -> tuple[int, str, list[str]]:
    """The exit code, standard error, and what ``manage.py`` was asked without paths and URLs."""
    (folder / "manage.py").write_text(MANAGE)
    texts = [
        (start, said if isinstance(said, str) else json.dumps(said), code)
        for start, said, code in answers
    ]
    (folder / "answers").write_text(json.dumps(texts))
    done = subprocess.run(
        [str(SCRIPTS / script), *words],
        env=os.environ | {"HELEXA_MANAGE": str(folder / "manage.py")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stderr, (folder / "asked").read_text().splitlines()


def listed(drained_at: str | None = "now") -> tuple[str, Any, int]:
    work = {"model": "tiny", "status": "ready", "num_requests": 2}
    state = {"drained_at": drained_at, "at_work": [work], "requests": ["019a", "019b"]}
    return LIST, [{"name": name} | state for name in ("beast", "benjy", "small")], 0


UPGRADE = "echo upgraded {} >> asked"


def test_one_after_the_other_until_one_is_red(tmp_path: Path) -> None:
    def deployed(
        *answers: tuple[str, Any, int], upgrade: str = UPGRADE, flags: str = ""
    ) -> tuple[int, str, list[str]]:
        (tmp_path / "asked").unlink(missing_ok=True)
        words = ("--upgrade", upgrade, *flags.split(), "beast", "benjy", "small")
        return ran(tmp_path, "rolling-deploy", *words, answers=[*answers])

    remember, drain, look, resume = (
        "deploy_gate --remember --neuron beast",
        "neurons drain beast",
        "neurons list --json",
        "neurons resume beast",
    )
    expect = "deploy_gate --expect --neuron beast --timeout 900"
    asking = "--question Which? --word Paris"
    restarted = (LIST, "it is restarted", 1)
    code, _, asked = deployed(restarted, listed(), flags=asking)
    assert code == 0
    first = [remember, drain, look, look, "upgraded beast", resume, f"{expect} {asking}"]
    assert asked[:8] == [*first, "deploy_gate --remember --neuron benjy"]
    code, output, asked = deployed(listed(), upgrade="exit 3")
    assert (code, asked) == (1, [remember, drain, look])
    assert "the upgrade of beast failed; it stays drained" in output
    code, output, asked = deployed(listed(None), flags="--drain-timeout 0 --within 30")
    assert (code, asked) == (1, [remember, f"{drain} --within 30", look, look, resume])
    works = "beast still works after 0 s: tiny (ready, 2 requests): 019a, 019b; it was resumed"
    assert works in output
    code, output, asked = deployed(listed(), (EXPECT_BENJY, "", 1))
    assert code == 1 and "benjy is red" in output
    assert asked[-1] == "neurons drain benjy" and not any("small" in line for line in asked)


FIT = {"name": "beast", "status": "online", "problems": []}
OF_A_FILE = {"quantization": "auto", "file": "Qwen3-8B.Q4_1.gguf"}
LOOKS, SHOWS, LOADS, GATE, UNLOADS = (
    *("neurons list", "models show", "models load", "deploy_gate --neuron", "models unload"),
)
ALL = [LOOKS, SHOWS, LOADS, GATE, UNLOADS]


@each_case(
    ("neuron", "model", "entry", "gate_code", "problem", "asked"),
    [
        (FIT, "", {}, 0, "", [LOOKS, GATE]),
        (FIT, "qwen Q4 2", {}, 0, "", ALL),
        (FIT, "qwen q4k 2", {}, 1, "", ALL),
        (FIT, "qwen q4_1 2", OF_A_FILE, 0, "", ALL),
        (FIT, "qwen q8 2", {}, 0, "has quantization q4, not q8: change it", ALL[:2]),
        (FIT, "qwen q4 4", {}, 0, "has tensor_parallel 2, not 4: change it", ALL[:2]),
        (FIT, "qwen", {"pinned": True}, 0, "qwen is pinned: it stays loaded", ALL[:4]),
        (FIT | {"name": "benjy"}, "", {}, 0, "beast is not known", [LOOKS]),
        (FIT | {"problems": ["the driver is older"]}, "", {}, 0, "driver is older", [LOOKS]),
        ("the key lacks a scope", "", {}, 0, "the key lacks a scope", [LOOKS]),
    ],
)
def test_a_neuron_that_is_fit_loads_a_model_and_answers(
    neuron: dict[str, Any] | str,
    model: str,
    entry: dict[str, Any],
    gate_code: int,
    problem: str,
    asked: list[str],
    tmp_path: Path,
) -> None:
    shown = {"name": "qwen", "quantization": "q4", "tensor_parallel": 2, "file": ""}
    answers = [
        (LIST, neuron, 1) if isinstance(neuron, str) else (LIST, [neuron], 0),
        ("models show", shown | {"pinned": False} | entry, 0),
        ("deploy_gate", "", gate_code),
    ]
    words = ("beast", *model.split(), "--url", "http://gateway:31313")
    code, output, found = ran(tmp_path, "validate-neuron", *words, answers=answers)
    assert code == (gate_code if GATE in asked else 1) and problem in output
    assert [" ".join(line.split()[:2]) for line in found] == asked
    for line in found:
        if line.startswith(GATE):
            assert "beast --word Tbilisi" in line and ("--model qwen" in line) == bool(model)
