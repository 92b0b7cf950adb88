"""A starter whose engine, in this process, records what it is sent and answers nothing.
``fake_engine`` is a process that answers."""

from __future__ import annotations

from typing import Any

from inference.neuron.requests.request_table import RequestTable
from inference.neuron.requests.starter import Starter
from inference.neuron.text.model_text import ModelText
from inference.protocol.engine import EmbedSequences, SubmitSequence
from inference.protocol.events import Event
from inference.protocol.generation import GenerationRequest, Request, Submit, TextInput


def submit_of(request_id: str, request: Request | None = None, **fields: Any) -> Submit:
    made = request or GenerationRequest(model="m", input=TextInput(texts=["x"]))
    given = {"gateway_id": "g", "model": "m", "deadline_unix_s": 4e9} | fields
    return Submit(request_id=request_id, request=made, **given)


class RecordingEngine:
    def __init__(self) -> None:
        self.sent: list[SubmitSequence | EmbedSequences] = []
        self.cancelled: list[str] = []
        """Ids of sequences."""

    def send(self, command: SubmitSequence | EmbedSequences) -> None:
        self.sent.append(command)

    def cancel(self, sequence_id: str) -> None:
        self.cancelled.append(sequence_id)


class Started:
    """A request "r" that was handed to the engine of ``text``, or refused."""

    def __init__(
        self, text: ModelText, request: Request, *, bodies: Any = None, **fields: Any
    ) -> None:
        """``fields``: of the submit."""
        self.engine = RecordingEngine()
        self.table = RequestTable()
        self.events: list[Event] = []
        starter = Starter(
            table=self.table,
            publish=lambda events: self.events.extend(one.event for one in events),
            take=lambda model: (self.engine, text),  # type: ignore[arg-type, return-value]
            read_images=lambda _: {},
            **({} if bodies is None else {"bodies": bodies}),
        )
        submit = submit_of("r", request, **fields)
        assert starter.admit(submit)
        starter.start(submit)
        assert self.events
