"""The gate of a deploy, the rolling deploy, and whether a neuron is fit to serve."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fleet.management.backend import RefusedError
from fleet.management.commands.deploy_gate import (
    ABSENT_LIMIT_S,
    MAX_TRIES,
    Gate,
    Loaded,
    failures,
    missing,
    ready_now,
)
from tests.cases import each_case

QWEN_ON_BEAST = Loaded("beast", "qwen")


def neuron(name: str = "beast", status: str = "online", back: str = "", **held: str) -> Any:
    replicas = [
        {"model": model, "status": word, "failure": "no memory" if word == "failed" else ""}
        for model, word in held.items()
    ]
    line = {"name": name, "status": status, "replicas": replicas}
    return line | {"coming_back": back.split()}


def overview(*neurons: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"is_live": True, "neurons": list(neurons), "jobs": []} | changes


def chat(text: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": finish_reason}]}


class FakeFleet:
    """Overviews one after the other, the last one repeatedly; so the answers of each model."""

    def __init__(self, *overviews: Any, answers: dict[str, list[Any]] | None = None) -> None:
        self.overviews, self.answers = list(overviews), answers or {}
        self.asked: list[tuple[str, str]] = []
        self.printed: list[str] = []
        self.penalties: list[Any] = []
        self.served_by = "beast"
        self.uses: Counter[str] = Counter()
        self.now_s = 0.0

    def last_used(self, one: Loaded) -> str:
        return str(self.uses[one.neuron])

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "minilm", "capabilities": ["embeddings"]}]}
        if body is None:
            return self._next(self.overviews)
        self.asked.append((path, body["model"]))
        self.penalties += [value for key, value in body.items() if key.endswith("_penalty")]
        self.uses[self.served_by] += 1
        return self._next(self.answers.get(body["model"], [chat("Pineapple.")]))

    def _next(self, answers: list[Any]) -> Any:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def problems(
        self, *expected: Loaded, neuron: str | None = None, ready_limit_s: float = 60.0
    ) -> list[str]:
        gate = Gate(
            fleet=self,
            neuron=neuron,
            ready_limit_s=ready_limit_s,
            report=self.printed.append,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )
        return gate.problems(list(expected))


LOADING, READY = overview(neuron(qwen="loading")), overview(neuron(qwen="ready"))
AWAY = RefusedError(0, "http://gateway:31313 does not answer: refused")


@each_case(
    ("overviews", "problem", "waited_s"),
    [
        ([overview(neuron(status="away")), LOADING, READY], "", 4.0),
        ([LOADING], "not ready in 900 s: qwen on beast is not ready", 900.0),
        ([overview(neuron(qwen="failed"))], "qwen failed on beast: no memory", 0.0),
        ([AWAY], str(AWAY), ABSENT_LIMIT_S),
        ([LOADING, *[AWAY] * 100, READY], "", 202.0),  # a gateway that is restarted
    ],
)
def test_what_was_loaded_is_waited_for_else_it_is_red(overviews, problem, waited_s) -> None:
    fleet = FakeFleet(*overviews)
    found = fleet.problems(QWEN_ON_BEAST, neuron="beast", ready_limit_s=900.0)
    assert found == ([problem] if problem else [])
    assert fleet.asked == ([] if problem else [("/v1/chat/completions", "qwen")])
    assert fleet.penalties == ([] if problem else [1, 0, 0]), "the model's own do not hinder it"
    assert ("qwen on beast: green" in fleet.printed) == (not problem)
    assert fleet.now_s == waited_s


def test_each_model_is_asked_once_and_an_answer_of_another_neuron_does_not_count() -> None:
    fleet = FakeFleet(overview(neuron()))
    assert fleet.problems(neuron="beast") == []
    assert fleet.printed == ["no model is loaded on beast: nothing to probe"]
    with pytest.raises(RefusedError, match="no scope"):
        FakeFleet(RefusedError(403, "no scope")).problems()
    loaded = overview(neuron(qwen="ready", tiny="ready"), neuron("benjy", qwen="ready"))
    fleet = FakeFleet(loaded, answers={"tiny": [chat("banana")]})
    assert fleet.problems() == ["tiny: its answer lacks 'pineapple': 'banana'"]
    assert [model for _, model in fleet.asked] == ["qwen", "tiny"]
    fleet = FakeFleet(overview(neuron(qwen="ready"), neuron("benjy", qwen="ready")))
    fleet.served_by = "benjy"
    (problem,) = fleet.problems(neuron="beast")
    assert "none of them there" in problem and len(fleet.asked) == MAX_TRIES
    for vector, is_green in (([0.5, -1], True), ([0.0, 0.0], False)):
        answers = {"minilm": [{"data": [{"embedding": vector}]}]}
        fleet = FakeFleet(overview(neuron(minilm="ready")), answers=answers)
        assert (fleet.problems() == []) is is_green
        assert fleet.asked == [("/v1/embeddings", "minilm")]
    # What stands in for an upgraded neuron is neither remembered nor asked.
    substitute = neuron("benjy", llama="ready", qwen="ready")
    back = neuron("beast", back="qwen", qwen="ready")
    assert ready_now(overview(back, substitute), "benjy") == [Loaded("benjy", "llama")]
    assert ready_now(overview(back, substitute), "beast") == [QWEN_ON_BEAST]
    settled = overview(neuron("beast", qwen="ready"), substitute)
    assert Loaded("benjy", "qwen") in ready_now(settled, "benjy")
    fleet = FakeFleet(overview(back, substitute))
    fleet.served_by = "benjy"
    assert fleet.problems(Loaded("benjy", "llama"), neuron="benjy") == []
    assert fleet.asked == [("/v1/chat/completions", "llama")]
    # Of the overview.
    job = {"kind": "load", "model": "new", "neuron": "beast", "status": "running"}
    here, away = neuron(qwen="ready", tiny="failed"), neuron("benjy", "away", qwen="away")
    fleet = overview(here, away, jobs=[job], is_live=False)
    assert (ready_now(fleet), ready_now(fleet, "benjy")) == ([QWEN_ON_BEAST], [])
    assert failures(fleet, "benjy") == [] and len(failures(fleet)) == 1
    assert missing(fleet, [], "benjy") == ["Redis does not answer the gateway", "benjy is away"]
    assert missing(fleet, [], "beast")[1:] == ["load of new on beast is running"]
    assert missing(fleet, [], "nobody")[1] == "nobody is not known"


def test_a_busy_model_is_asked_again_and_other_answers_are_red_at_once() -> None:
    silent = {"choices": [{"message": {"content": None}}]}
    busy = RefusedError(503, "full", 30)
    for answers, problem, waited_s in (
        ([busy, RefusedError(429, "", 2), chat("PINEAPPLE")], "", 32),
        ([busy], "qwen: it was refused (503): full", 330),
        ([RefusedError(500, "broken")], "refused (500)", 0),
        ([RefusedError(0, "gone")], "no answer", 0),
        ([chat("pine", "length")], "cut off", 0),
        ([{"choices": []}], "its answer is none", 0),
        ([silent], "lacks", 0),
    ):
        fleet = FakeFleet(READY, answers={"qwen": list(answers)})
        found = fleet.problems()
        assert len(found) == bool(problem) and problem in "".join(found)
        assert fleet.now_s == pytest.approx(waited_s, abs=30 if waited_s > 32 else 0)


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


@pytest.mark.slow
def test_one_after_the_other_until_one_is_red(tmp_path: Path) -> None:
    def deployed(
        *answers: tuple[str, Any, int], upgrade: str = UPGRADE, flags: str = ""
    ) -> tuple[int, str, list[str]]:
        (tmp_path / "asked").unlink(missing_ok=True)
        words = ("--upgrade", upgrade, *flags.split(), "beast", "benjy", "small")
        return ran(tmp_path, "rolling-deploy", *words, answers=[*answers])

    remember, look = "deploy_gate --remember --neuron beast", "neurons list --json"
    drain, resume = "neurons drain beast", "neurons resume beast"
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


@pytest.mark.slow
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
def test_a_fit_neuron_answers(neuron, model, entry, gate_code, problem, asked, tmp_path) -> None:
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
