"""The one thread that turns submitted requests into sequences: render, tokenize, hand over.

Draining the inbox only queues them here, so a long prompt delays neither cancels nor heartbeats,
and tokens of other requests go up on their replicas' own threads.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from inference.neuron.answers import Answer
from inference.neuron.engine_process import EngineProcess
from inference.neuron.errors import (
    EngineGoneError,
    RequestRefusedError,
    deadline_passed,
    internal_error,
    model_recovering,
)
from inference.neuron.prompts import ModelText, Prompt, echo_text, prepare
from inference.neuron.request_table import AddressedEvent, RequestTable
from inference.protocol.engine import SubmitSequence
from inference.protocol.events import Accepted, Failure
from inference.protocol.generation import Submit

log = logging.getLogger(__name__)


class Intake:
    def __init__(
        self,
        *,
        table: RequestTable,
        publish: Callable[[list[AddressedEvent]], None],
        take: Callable[[str], tuple[EngineProcess, ModelText]],
    ) -> None:
        """``take`` gives what runs a model's request or raises ``RequestRefusedError``."""
        self._table = table
        self._publish = publish
        self._take = take
        self._queue: queue.SimpleQueue[Submit | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends after what is queued. Returns at once."""
        self._queue.put(None)

    def put(self, submit: Submit) -> None:
        if self._table.admit(submit):
            self._queue.put(submit)
        else:
            log.warning("request %s was delivered twice", submit.request_id)

    def _run(self) -> None:
        while (submit := self._queue.get()) is not None:
            try:
                self._start(submit)
            except RequestRefusedError as refusal:
                self._fail(submit, refusal.failure)
            except Exception:
                log.exception("request %s: intake broke", submit.request_id)
                self._fail(submit, internal_error())

    def _fail(self, submit: Submit, failure: Failure) -> None:
        self._publish(self._table.fail(submit.request_id, failure))

    def _start(self, submit: Submit) -> None:
        request_id = submit.request_id
        if time.time() > submit.deadline_unix_s:
            raise RequestRefusedError(deadline_passed())
        engine, text = self._take(submit.model)
        prompt = prepare(submit.request, text)
        if not self._table.begin(request_id, _answer(submit, prompt, text), engine):
            return  # cancelled while it was prepared
        accepted = Accepted(request_id=request_id, prompt_tokens=len(prompt.token_ids))
        self._publish([AddressedEvent(submit.gateway_id, accepted)])
        command = SubmitSequence(
            request_id=request_id, token_ids=prompt.token_ids, params=prompt.params
        )
        try:
            engine.send(command)
        except EngineGoneError as error:
            raise RequestRefusedError(model_recovering(submit.model)) from error
        if self._table.started(request_id):
            engine.cancel(request_id)


def _answer(submit: Submit, prompt: Prompt, text: ModelText) -> Answer:
    request = submit.request
    if not all(request.stop):
        raise RequestRefusedError(
            Failure(code="invalid_value", message="a stop string is empty", param="stop")
        )
    return Answer(
        request_id=submit.request_id,
        tokenizer=text.tokenizer,
        num_prompt_tokens=len(prompt.token_ids),
        stop=request.stop,
        continues_text=prompt.continues_text,
        echo=echo_text(prompt, text, request) if request.echo else "",
    )
