"""Is a neuron fit to serve, by a ``manage.py`` that writes down what it is asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "validate-neuron"
FAKE_MANAGE = """
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
    (folder / "manage.py").write_text(FAKE_MANAGE)
    (folder / "neurons.json").write_text(json.dumps(neurons))
    (folder / "code").write_text(str(code))
    done = subprocess.run(
        [str(SCRIPT), "beast", *model, "--url", "http://gateway:31313"],
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


def test_a_model_that_answers_otherwise_is_red(tmp_path: Path) -> None:
    code, _ = validated(tmp_path, FIT, code=1)
    assert code == 1


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


def test_a_quant_may_be_named_as_in_the_name_of_a_file(tmp_path: Path) -> None:
    entry = {"quantization": "auto", "file": "Qwen3-8B.Q4_1.gguf"}
    assert validated(tmp_path, FIT, model=("qwen", "q4_1", "2"), entry=entry) == (0, "")
    code, output = validated(tmp_path, FIT, model=("qwen", "q4", "2"), entry=entry)
    assert code == 1 and "has quantization auto, not q4" in output


def test_a_model_of_another_quant_or_size_is_not_loaded(tmp_path: Path) -> None:
    code, output = validated(tmp_path, FIT, model=("qwen", "q8", "2"))
    assert (code, output) == (
        1,
        "the catalogue entry qwen has quantization q4, not q8: change it\n",
    )
    code, output = validated(tmp_path, FIT, model=("qwen", "q4", "4"))
    assert (code, output) == (
        1,
        "the catalogue entry qwen has tensor_parallel 2, not 4: change it\n",
    )


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
