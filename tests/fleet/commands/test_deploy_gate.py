"""The gate of a deploy: what it waits for, what it asks, and when it is red. No time passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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


def neuron(
    name: str = "beast", status: str = "online", coming_back: Sequence[str] = (), **statuses: str
) -> dict[str, Any]:
    replicas = [
        {"model": model, "status": word, "failure": "no memory" if word == "failed" else ""}
        for model, word in statuses.items()
    ]
    line = {"name": name, "status": status, "replicas": replicas}
    return line | {"coming_back": list(coming_back)}


def overview(*neurons: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"is_live": True, "neurons": list(neurons), "jobs": []} | changes


def chat(text: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": finish_reason}]}


class FakeFleet:
    """Overviews one after the other, the last one repeatedly; so the answers of each model."""

    def __init__(
        self, *overviews: dict[str, Any] | Exception, answers: dict[str, list[Any]] | None = None
    ) -> None:
        self.overviews = list(overviews)
        self.answers = answers or {}
        self.asked: list[tuple[str, str]] = []
        self.penalties: list[Any] = []
        self.served_by = "beast"
        self.uses: Counter[str] = Counter()
        self.now_s = 0.0
        self.printed: list[str] = []

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
def test_what_was_loaded_is_waited_for_and_what_does_not_come_is_red(
    overviews: list[Any], problem: str, waited_s: float
) -> None:
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
    back = neuron("beast", coming_back=["qwen"], qwen="ready")
    assert ready_now(overview(back, substitute), "benjy") == [Loaded("benjy", "llama")]
    assert ready_now(overview(back, substitute), "beast") == [QWEN_ON_BEAST]
    settled = overview(neuron("beast", qwen="ready"), substitute)
    assert Loaded("benjy", "qwen") in ready_now(settled, "benjy")
    fleet = FakeFleet(overview(back, substitute))
    fleet.served_by = "benjy"
    assert fleet.problems(Loaded("benjy", "llama"), neuron="benjy") == []
    assert fleet.asked == [("/v1/chat/completions", "llama")]


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


def test_of_the_overview() -> None:
    job = {"kind": "load", "model": "new", "neuron": "beast", "status": "running"}
    here, away = neuron(qwen="ready", tiny="failed"), neuron("benjy", "away", qwen="away")
    fleet = overview(here, away, jobs=[job], is_live=False)
    assert (ready_now(fleet), ready_now(fleet, "benjy")) == ([QWEN_ON_BEAST], [])
    assert failures(fleet, "benjy") == [] and len(failures(fleet)) == 1
    assert missing(fleet, [], "benjy") == ["Redis does not answer the gateway", "benjy is away"]
    assert missing(fleet, [], "beast")[1:] == ["load of new on beast is running"]
    assert missing(fleet, [], "nobody")[1] == "nobody is not known"
