"""The rolling deploy, and whether a neuron is fit to serve, with a ``manage.py`` that writes down
what it is asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
DEPLOYED = """
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
words = sys.argv[1:]
with (folder / "asked").open("a") as file:
    file.write(" ".join(word for word in words if "/" not in word) + "\\n")
if words[:2] == ["neurons", "list"] and (folder / "away").exists():
    (folder / "away").unlink()
    sys.exit("the gateway does not answer")
if words[:2] == ["neurons", "list"]:
    work = {"model": "tiny", "status": "ready", "num_requests": 2}
    found = {"drained_at": None if (folder / "busy").exists() else "now", "at_work": [work]}
    found["requests"] = ["019a", "019b"]
    print(json.dumps([{"name": name} | found for name in ("beast", "benjy", "small")]))
if "--expect" in words and (folder / "red").exists():
    sys.exit((folder / "red").read_text() == words[words.index("--neuron") + 1])
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    (tmp_path / "manage.py").write_text(DEPLOYED)
    return tmp_path


def deploy(fake: Path, upgrade: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / "rolling-deploy"), "--upgrade", upgrade, *flags, "beast", "benjy", "small"],
        env=os.environ | {"HELEXA_MANAGE": str(fake / "manage.py")},
        cwd=fake,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_one_after_the_other(fake: Path) -> None:
    done = deploy(fake, "echo upgraded {} >> asked")
    assert done.returncode == 0, done.stderr
    assert (fake / "asked").read_text().splitlines()[:7] == [
        "deploy_gate --remember --neuron beast",
        "neurons drain beast",
        "neurons list --json",
        "upgraded beast",
        "neurons resume beast",
        "deploy_gate --expect --neuron beast --timeout 900",
        "deploy_gate --remember --neuron benjy",
    ]


def test_the_first_red_one_stops_it_and_stays_drained(fake: Path) -> None:
    (fake / "red").write_text("benjy")
    done = deploy(fake, "echo upgraded {} >> asked")
    asked = (fake / "asked").read_text().splitlines()
    assert done.returncode == 1
    assert "benjy is red" in done.stderr
    assert asked[-1] == "neurons drain benjy"
    assert not any("small" in line for line in asked)


def test_a_drain_that_is_given_up_names_what_runs(fake: Path) -> None:
    (fake / "busy").touch()
    done = deploy(fake, "true", "--drain-timeout", "0", "--within", "30")
    assert done.returncode == 1
    words = "beast still works after 0 s: tiny (ready, 2 requests): 019a, 019b; it was resumed"
    assert words in done.stderr
    asked = (fake / "asked").read_text().splitlines()
    assert asked[1] == "neurons drain beast --within 30" and asked[-1] == "neurons resume beast"


def test_an_upgrade_that_fails_stops_it(fake: Path) -> None:
    done = deploy(fake, "exit 3")
    assert done.returncode == 1
    assert "the upgrade of beast failed; it stays drained" in done.stderr
    assert (fake / "asked").read_text().splitlines()[-1] == "neurons list --json"


def test_a_gateway_that_is_away_is_asked_again(fake: Path) -> None:
    """A gateway is away while it is restarted itself."""
    (fake / "away").touch()
    done = deploy(fake, "echo upgraded {} >> asked")
    assert done.returncode == 0
    assert done.stderr == "the gateway does not answer\n"


def test_the_gates_question_is_handed_on(fake: Path) -> None:
    assert deploy(fake, "true", "--question", "Which is it?", "--word", "Paris").returncode == 0
    gated = [line for line in (fake / "asked").read_text().splitlines() if "--expect" in line]
    assert len(gated) == 3
    assert all(line.endswith("--question Which is it? --word Paris") for line in gated)


VALIDATED = """
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
if sys.argv[1:3] == ["neurons", "list"]:
    if (folder / "refusal").exists():
        sys.exit((folder / "refusal").read_text())
    print((folder / "neurons.json").read_text())
elif sys.argv[1] == "models":
    with (folder / "jobs").open("a") as file:
        file.write(" ".join(sys.argv[2:6]) + "\\n")
    if sys.argv[2] == "show":
        entry = {"name": "qwen", "quantization": "q4", "tensor_parallel": 2}
        entry |= {"file": "", "pinned": False}
        print(json.dumps(entry | json.loads((folder / "entry.json").read_text())))
else:
    (folder / "gated").write_text("\\n".join(sys.argv[1:]))
    sys.exit(int((folder / "code").read_text()))
"""
FIT = {"name": "beast", "status": "online", "problems": []}


def validated(
    folder: Path,
    *neurons: dict[str, Any],
    code: int = 0,
    model: tuple[str, ...] = (),
    entry: dict[str, Any] | None = None,
) -> tuple[int, str]:
    (folder / "entry.json").write_text(json.dumps(entry or {}))
    (folder / "manage.py").write_text(VALIDATED)
    (folder / "neurons.json").write_text(json.dumps(neurons))
    (folder / "code").write_text(str(code))
    done = subprocess.run(
        [str(SCRIPTS / "validate-neuron"), "beast", *model, "--url", "http://gateway:31313"],
        env=os.environ | {"HELEXA_MANAGE": str(folder / "manage.py")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stderr


def test_a_load_and_an_unload_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tmp_path / "bin" / "timeout"
    limits.parent.mkdir()
    limits.write_text(f'#!/bin/sh\necho "$1 $5" >> {tmp_path}/limits\nshift\nexec "$@"\n')
    limits.chmod(0o755)
    monkeypatch.setenv("PATH", f"{limits.parent}:{os.environ['PATH']}")
    assert validated(tmp_path, FIT, model=("qwen", "q4", "2"))[0] == 0
    assert (tmp_path / "limits").read_text() == "3600 load\n300 unload\n"


def test_a_neuron_that_is_fit_is_asked_for_the_capital(tmp_path: Path) -> None:
    assert validated(tmp_path, FIT) == (0, "")
    asked = (tmp_path / "gated").read_text().splitlines()
    assert asked[:5] == ["deploy_gate", "--neuron", "beast", "--word", "Tbilisi"]
    assert asked[-2:] == ["--url", "http://gateway:31313"]


@pytest.mark.parametrize("quant", ["Q4", "q4k"])
@pytest.mark.parametrize("gate_code", [0, 1])
def test_a_model_is_loaded_asked_and_unloaded(gate_code: int, quant: str, tmp_path: Path) -> None:
    model = ("qwen", quant, "2")
    assert validated(tmp_path, FIT, code=gate_code, model=model) == (gate_code, "")
    assert (tmp_path / "jobs").read_text().splitlines() == [
        "show qwen --json --url",
        "load qwen --neuron beast",
        "unload qwen --neuron beast",
    ]
    assert "--model\nqwen" in (tmp_path / "gated").read_text()


def test_a_pinned_model_stays_loaded(tmp_path: Path) -> None:
    """Its unload would be refused."""
    code, output = validated(tmp_path, FIT, model=("qwen",), entry={"pinned": True})
    assert (code, output) == (0, "qwen is pinned: it stays loaded\n")
    assert "unload" not in (tmp_path / "jobs").read_text()


def test_a_model_of_another_quant_or_size_is_not_loaded(tmp_path: Path) -> None:
    """A quant may be named as in the name of a file."""
    for model, problem in (
        (("qwen", "q8", "2"), "has quantization q4, not q8: change it\n"),
        (("qwen", "q4", "4"), "has tensor_parallel 2, not 4: change it\n"),
    ):
        code, output = validated(tmp_path, FIT, model=model)
        assert (code, output) == (1, f"the catalogue entry qwen {problem}")
    entry = {"quantization": "auto", "file": "Qwen3-8B.Q4_1.gguf"}
    assert validated(tmp_path, FIT, model=("qwen", "q4_1", "2"), entry=entry) == (0, "")
    code, output = validated(tmp_path, FIT, model=("qwen", "q4", "2"), entry=entry)
    assert code == 1 and "has quantization auto, not q4" in output


@pytest.mark.parametrize(
    ("neurons", "expected"),
    [
        ([], "beast is not known"),
        ([FIT | {"name": "benjy"}], "beast is not known"),
        ([FIT | {"problems": ["the driver is older than its library"]}], "the driver is older"),
        ([FIT | {"status": "lost"}], ""),
    ],
)
def test_a_neuron_that_is_not_is_asked_nothing(
    neurons: list[dict[str, Any]], expected: str, tmp_path: Path
) -> None:
    code, output = validated(tmp_path, *neurons)
    assert code == 1
    assert expected in output
    assert not (tmp_path / "gated").exists()


def test_a_list_that_is_refused_is_reported_once(tmp_path: Path) -> None:
    """A list is refused to a key without the scope, or where no server answers."""
    (tmp_path / "refusal").write_text("CommandError: the key lacks the scope fleet:read")
    code, output = validated(tmp_path, FIT)
    assert (code, output) == (1, "CommandError: the key lacks the scope fleet:read\n")
    assert not (tmp_path / "gated").exists()
