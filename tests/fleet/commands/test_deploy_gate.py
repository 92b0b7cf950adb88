"""The gate of a deploy: what it waits for, what it asks, and when it is red. No time passes."""

from __future__ import annotations

import dataclasses
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
from fleet.overview.lines import FleetOverview, JobLine, NeuronLine, ReplicaLine
from tests.cases import each_case

QWEN_ON_BEAST = Loaded("beast", "qwen")


def neuron(
    name: str = "beast", status: str = "online", coming_back: Sequence[str] = (), **statuses: str
) -> dict[str, Any]:
    replicas = [
        {"model": model, "status": word, "failure": "no memory" if word == "failed" else ""}
        for model, word in statuses.items()
    ]
    return {
        "name": name,
        "status": status,
        "replicas": replicas,
        "coming_back": list(coming_back),
    }


def overview(*neurons: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"is_live": True, "neurons": list(neurons), "jobs": []} | changes


def chat(text: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": finish_reason}]}


def test_the_overviews_here_are_like_the_real_one() -> None:
    job = {"kind": "load", "model": "new", "neuron": "beast", "status": "running"}
    ours = overview(neuron(qwen="ready"))
    for kind, fields in (
        (FleetOverview, ours),
        (NeuronLine, ours["neurons"][0]),
        (ReplicaLine, ours["neurons"][0]["replicas"][0]),
        (JobLine, job),
    ):
        assert fields.keys() <= {field.name for field in dataclasses.fields(kind)}


class FakeFleet:
    """Overviews one after the other, the last one repeatedly; answers by model."""

    def __init__(
        self, *overviews: dict[str, Any] | Exception, answers: dict[str, Any] | None = None
    ) -> None:
        self.overviews = list(overviews)
        self.answers = answers or {}
        self.asked: list[tuple[str, str]] = []
        self.penalties: list[Any] = []
        self.served_by = "beast"
        self.uses: dict[str, int] = {}
        self.embedding: tuple[str, ...] = ()
        self.now_s = 0.0
        self.printed: list[str] = []

    def _overview(self) -> dict[str, Any]:
        found = self.overviews.pop(0) if len(self.overviews) > 1 else self.overviews[0]
        if isinstance(found, Exception):
            raise found
        return found

    def last_used(self, one: Loaded) -> str:
        return str(self.uses.get(one.neuron, 0))

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        if path == "/v1/models":
            cards = [{"id": name, "capabilities": ["embeddings"]} for name in self.embedding]
            return {"data": cards}
        if body is None:
            return self._overview()
        self.asked.append((path, body["model"]))
        self.penalties += [value for key, value in body.items() if key.endswith("_penalty")]
        self.uses[self.served_by] = self.uses.get(self.served_by, 0) + 1
        answer = self.answers.get(body["model"], chat("Pineapple."))
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def gate(self, neuron: str | None = None, *, embedding: tuple[str, ...] = ()) -> Gate:
        self.embedding = embedding
        return Gate(
            fleet=self,
            neuron=neuron,
            ready_limit_s=60.0,
            report=self.printed.append,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )


def test_what_was_loaded_is_waited_for() -> None:
    fleet = FakeFleet(
        overview(neuron(status="away")),
        overview(neuron(qwen="loading")),
        overview(neuron(qwen="ready")),
    )
    assert fleet.gate("beast").problems([QWEN_ON_BEAST]) == []
    assert fleet.asked == [("/v1/chat/completions", "qwen")]
    assert fleet.penalties == [1, 0, 0], "the model's own do not keep it from the words"
    assert "qwen on beast: green" in fleet.printed


def test_what_does_not_come_is_red_and_nothing_is_asked() -> None:
    for status, problem, waited_s in (
        ("loading", "not ready in 60 s: qwen on beast is not ready", 60.0),
        ("failed", "qwen failed on beast: no memory", 0.0),
    ):
        fleet = FakeFleet(overview(neuron(qwen=status)))
        assert fleet.gate().problems([QWEN_ON_BEAST]) == [problem]
        assert fleet.asked == [] and fleet.now_s == pytest.approx(waited_s, abs=5)
    fleet = FakeFleet(overview(neuron()))
    assert fleet.gate("beast").problems([]) == []
    assert fleet.printed == ["no model is loaded on beast: nothing to probe"]


def test_what_stands_in_for_an_upgraded_neuron_is_neither_remembered_nor_asked() -> None:
    substitute = neuron("benjy", llama="ready", qwen="ready")
    back = neuron("beast", coming_back=["qwen"], qwen="ready")
    assert ready_now(overview(back, substitute), "benjy") == [Loaded("benjy", "llama")]
    assert ready_now(overview(back, substitute), "beast") == [QWEN_ON_BEAST]
    settled = overview(neuron("beast", qwen="ready"), substitute)
    assert Loaded("benjy", "qwen") in ready_now(settled, "benjy")
    fleet = FakeFleet(overview(back, substitute))
    fleet.served_by = "benjy"
    assert fleet.gate("benjy").problems([Loaded("benjy", "llama")]) == []
    assert fleet.asked == [("/v1/chat/completions", "llama")]


AWAY = RefusedError(0, "http://gateway:31313 does not answer: refused")


def test_a_server_that_is_absent_is_not_waited_for_as_loads_are() -> None:
    fleet = FakeFleet(AWAY)
    gate = dataclasses.replace(fleet.gate(), ready_limit_s=900.0)
    assert gate.problems([QWEN_ON_BEAST]) == [str(AWAY)]
    assert fleet.printed == [f"waiting: {AWAY}"]
    assert fleet.now_s == ABSENT_LIMIT_S


def test_a_gateway_that_is_restarted_meanwhile_is_waited_for() -> None:
    silent = [AWAY] * 100
    fleet = FakeFleet(overview(neuron(qwen="loading")), *silent, overview(neuron(qwen="ready")))
    gate = dataclasses.replace(fleet.gate(), ready_limit_s=900.0)
    assert gate.problems([QWEN_ON_BEAST]) == []
    with pytest.raises(RefusedError, match="no scope"):
        FakeFleet(RefusedError(403, "no scope")).gate().problems([])


def test_each_model_is_asked_once_wherever_it_is() -> None:
    fleet = FakeFleet(
        overview(neuron(qwen="ready", tiny="ready"), neuron("benjy", qwen="ready")),
        answers={"tiny": chat("banana")},
    )
    assert fleet.gate().problems([]) == ["tiny: its answer lacks 'pineapple': 'banana'"]
    assert [model for _, model in fleet.asked] == ["qwen", "tiny"]


def test_an_answer_of_another_neuron_does_not_count() -> None:
    fleet = FakeFleet(overview(neuron(qwen="ready"), neuron("benjy", qwen="ready")))
    fleet.served_by = "benjy"
    (problem,) = fleet.gate("beast").problems([])
    assert "none of them there" in problem
    assert len(fleet.asked) == MAX_TRIES


def test_an_embedding_model_is_asked_for_a_vector() -> None:
    good, bad = ({"data": [{"embedding": numbers}]} for numbers in ([0.5, -1], [0.0, 0.0]))
    fleet = FakeFleet(overview(neuron(minilm="ready")), answers={"minilm": good})
    assert fleet.gate(embedding=("minilm",)).problems([]) == []
    assert fleet.asked == [("/v1/embeddings", "minilm")]
    fleet = FakeFleet(overview(neuron(minilm="ready")), answers={"minilm": bad})
    assert fleet.gate(embedding=("minilm",)).problems([]) != []


def problem_after(*answers: Any) -> tuple[str | None, FakeFleet]:
    fleet = FakeFleet(overview(neuron(qwen="ready")), answers={"qwen": list(answers)})
    problems = fleet.gate().problems([])
    return problems[0] if problems else None, fleet


def test_a_busy_model_is_asked_again_for_a_while() -> None:
    problem, fleet = problem_after(
        RefusedError(503, "full", 30), RefusedError(429, "burst", 2), chat("PINEAPPLE")
    )
    assert problem is None
    assert fleet.now_s == 32.0
    problem, fleet = problem_after(RefusedError(503, "full", 30))
    assert problem == "qwen: it was refused (503): full"
    assert 300 <= fleet.now_s <= 360


@each_case(
    ("answer", "words"),
    [
        (RefusedError(500, "broken"), "refused (500)"),
        (RefusedError(0, "gone"), "no answer"),
        (chat("pine", "length"), "cut off"),
        ({"choices": []}, "its answer is none"),
        ({"choices": [{"message": {"content": None}}]}, "lacks"),
    ],
)
def test_other_answers_are_red_at_once(answer: Any, words: str) -> None:
    problem, fleet = problem_after(answer)
    assert problem is not None and words in problem
    assert fleet.now_s == 0.0


def test_of_the_overview() -> None:
    fleet = overview(
        neuron(qwen="ready", tiny="failed"),
        neuron("benjy", "away", qwen="away"),
        jobs=[{"kind": "load", "model": "new", "neuron": "beast", "status": "running"}],
        is_live=False,
    )
    assert ready_now(fleet) == [QWEN_ON_BEAST]
    assert ready_now(fleet, "benjy") == []
    assert failures(fleet, "benjy") == [] and len(failures(fleet)) == 1
    assert missing(fleet, [], "benjy") == ["Redis does not answer the gateway", "benjy is away"]
    assert missing(fleet, [], "beast")[1:] == ["load of new on beast is running"]
    assert missing(fleet, [], "nobody")[1] == "nobody is not known"
