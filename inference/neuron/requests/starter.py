"""Makes a submitted request run: rendered, tokenized, checked and handed to its engine.

Several threads of the intake call it at once, one for each request. Meanwhile the request is marked
in Redis, so that the death of this neuron has a suspect. A mark
costs no round trip: it is written to the socket before the work begins, and the kernel delivers it
even if the process dies in the next instruction. While Redis is offline there are none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import redis

from inference.neuron.errors import (
    INTERNAL_ERROR,
    EngineGoneError,
    RequestRefusedError,
    of_model,
    refused,
    retryable,
    wrong_kind,
)
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.requests.request_table import (
    AddressedEvent,
    RequestTable,
    sequence_id,
)
from inference.neuron.text.answers import EmbeddingAnswer, TextAnswer, build_answer
from inference.neuron.text.inputs import (
    count_tokens,
    prepare_embedding,
    prepare_scoring,
    tokenized,
)
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import TokenBudget, used_sampling
from inference.neuron.text.prompt_images import sequence_images
from inference.neuron.text.prompts import Prepared, prepare
from inference.neuron.text.request_details import RequestDetails, RequestTrace
from inference.neuron.text.request_details import logger as details_logger
from inference.protocol.delivery import MARKS_EXPIRY_S, decode_marks
from inference.protocol.engine import EmbedSequences, SamplingParams, SubmitSequence
from inference.protocol.events import Accepted, Event, Failure, TokensCounted, Traced
from inference.protocol.generation import (
    ChatInput,
    EmbeddingRequest,
    GenerationRequest,
    Request,
    ScoreRequest,
    Submit,
    TokenCountRequest,
    TokenizeRequest,
)
from inference.protocol.images import ImageRef, SequenceImage
from inference.protocol.keys import preparing_key
from inference.settings.neuron import LOG_BODIES, LoggedBodies

log = logging.getLogger(__name__)

EARLIER_KEPT_S = 60.0
"""How long marks of dead instances stay: gateways read them within seconds."""


class PreparingMarks:
    """``begin`` and ``end`` may be called by any thread; the others by the heartbeat's alone."""

    def __init__(self, client: redis.Redis, *, neuron: str, epoch: str) -> None:
        self._client = client
        self._key = preparing_key(neuron)
        self._epoch = epoch
        self._lock = threading.Lock()
        self._connection: Any = None
        self.earlier: dict[str, str] = {}
        self._is_read = False

    def begin(self, request_id: str) -> None:
        """Returns at once."""
        self._send(
            ("HSET", self._key, request_id, self._epoch),
            ("PEXPIRE", self._key, MARKS_EXPIRY_S * 1000),
        )

    def end(self, request_id: str) -> None:
        """Returns at once."""
        self._send(("HDEL", self._key, request_id))

    def read_earlier(self) -> None:
        """Call before the first request; reads once. Raises ``redis.RedisError``."""
        if self._is_read:
            return
        found: Any = self._client.hgetall(self._key)
        marks = decode_marks(found)
        self.earlier = {one: epoch for one, epoch in marks.items() if epoch != self._epoch}
        self._is_read = True
        if self.earlier:
            log.warning(
                "the previous instance of this neuron ended while it prepared %s",
                ", ".join(sorted(self.earlier)),
            )

    def keep(self, age_s: float) -> None:
        """``age_s``: of this instance. Raises ``redis.RedisError``."""
        with self._lock:
            try:
                while self._connection is not None and self._connection.can_read(0):
                    self._connection.read_response()
            except redis.RedisError as error:
                self._lost(error)
            is_connected = self._connection is not None
        if not is_connected:
            connection: Any = self._client.connection_pool.make_connection()
            connection.connect()
            self._connection = connection
        if self.earlier and age_s > EARLIER_KEPT_S:
            self._client.hdel(self._key, *self.earlier)
            self.earlier = {}

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.disconnect()
            self._connection = None

    def _send(self, *commands: tuple[str | int, ...]) -> None:
        with self._lock:
            if self._connection is None:
                return
            try:
                packed = self._connection.pack_commands(commands)
                self._connection.send_packed_command(packed, check_health=False)
            except redis.RedisError as error:
                self._lost(error)

    def _lost(self, error: redis.RedisError) -> None:
        log.warning("what is being prepared is not marked in Redis: %s", error)
        self._connection = None


Answer = TextAnswer | EmbeddingAnswer
Work = tuple[
    Accepted, Answer, Iterable[SubmitSequence | EmbedSequences], Callable[[], Traced] | None
]


class Starter:
    def __init__(
        self,
        *,
        table: RequestTable,
        publish: Callable[[list[AddressedEvent]], None],
        take: Callable[[str], tuple[EngineProcess, ModelText]],
        read_images: Callable[[str, list[ImageRef]], dict[str, bytes]],
        bodies: LoggedBodies = LOG_BODIES.default,
    ) -> None:
        """``take`` and ``read_images`` raise ``RequestRefusedError``."""
        self._table = table
        self._publish = publish
        self._take = take
        self._read_images = read_images
        self._bodies = bodies

    def admit(self, submit: Submit) -> bool:
        return self._table.admit(submit)

    def refuse(self, submit: Submit, failure: Failure) -> None:
        self._publish(self._table.fail(submit.request_id, failure))

    def start(self, submit: Submit) -> None:
        try:
            self._start(submit)
        except RequestRefusedError as refusal:
            self.refuse(submit, refusal.failure)
        except BaseException:  # a panic in Rust too ends this request alone
            log.exception("request %s: intake broke", submit.request_id)
            self.refuse(submit, INTERNAL_ERROR)

    def _start(self, submit: Submit) -> None:
        if not self._table.is_live(submit.request_id):
            return  # cancelled while it waited
        if time.time() > submit.deadline_unix_s:
            message = "the request reached its neuron after its deadline"
            raise RequestRefusedError(retryable("queue_timeout", message))
        engine, text = self._take(submit.model)
        text = text.of(partial(self._table.is_live, submit.request_id))
        if not _suits(submit.request, text):
            raise RequestRefusedError(wrong_kind(submit.model, text.report.kind))
        if submit.adapter is not None and text.report.kind != "generation":
            message = f"model {submit.model!r} takes no adapters: those that generate text do"
            raise refused("invalid_value", message, param="model")
        event: Event
        match submit.request:
            case TokenCountRequest() as request:
                num_tokens = count_tokens(request, text)
                event = TokensCounted(request_id=submit.request_id, prompt_tokens=num_tokens)
                self._publish(self._table.end(submit.request_id, event))
            case TokenizeRequest() as request:
                event = tokenized(submit.request_id, request, text)
                self._publish(self._table.end(submit.request_id, event))
            case GenerationRequest() as request:
                self._hand_over(submit, engine, *self._generation(submit, request, text))
            case EmbeddingRequest(dimensions=dimensions) as request:
                inputs = prepare_embedding(request, text)
                self._hand_over(submit, engine, *_embedding(submit, inputs, dimensions))
            case ScoreRequest() as request:
                is_cosine = text.report.kind == "embedding"
                num_firsts = len(request.input.firsts) if is_cosine else None
                inputs = prepare_scoring(request, text)
                self._hand_over(submit, engine, *_embedding(submit, inputs, None, num_firsts))

    def _generation(self, submit: Submit, request: GenerationRequest, text: ModelText) -> Work:
        request_id = submit.request_id
        prepared = prepare(request, text, TokenBudget.of(submit))
        trace = RequestTrace(request_id, text.tokenizer) if submit.captures else None
        details: list[RequestDetails] = [] if trace is None else [trace]
        if details_logger.isEnabledFor(logging.DEBUG):
            shows_bodies = self._bodies.include(submit.account)
            details.append(RequestDetails(request_id, shows_bodies=shows_bodies))
        for one in details:
            one.prompts(prepared, text.tokenizer, _tool_format(request, text))
        answer = build_answer(request_id, request, prepared, text, details)
        images = []
        if prepared.images:
            refs = [placed.image for placed in prepared.images]
            images = sequence_images(prepared.images, self._read_images(request_id, refs))
        accepted = Accepted(
            request_id=request_id,
            prompt_tokens=prepared.num_prompt_tokens,
            sampling=used_sampling(prepared.params),
            fingerprint=text.fingerprint,
            num_lost_turns=prepared.num_lost_turns,
            prompt_token_ids=prepared.prompts if request.returns_token_ids else None,
            not_enforced=list(prepared.not_enforced),
        )
        commands = _commands(submit, request, prepared, images)
        return accepted, answer, commands, None if trace is None else trace.event

    def _hand_over(
        self,
        submit: Submit,
        engine: EngineProcess,
        accepted: Accepted,
        answer: Answer,
        commands: Iterable[SubmitSequence | EmbedSequences],
        trace: Callable[[], Traced] | None,
    ) -> None:
        request_id = submit.request_id
        if not self._table.begin(request_id, answer, engine, trace):
            return  # cancelled while it was prepared
        self._publish([AddressedEvent(submit.gateway_id, accepted)])
        try:
            for command in commands:
                engine.send(command)
        except EngineGoneError as error:
            raise RequestRefusedError(of_model("recovering", submit.model)) from error
        if self._table.started(request_id):
            for index in range(answer.num_sequences):
                engine.cancel(sequence_id(request_id, index))


def _embedding(
    submit: Submit, inputs: list[list[int]], dimensions: int | None, num_firsts: int | None = None
) -> Work:
    request_id, num_tokens = submit.request_id, sum(map(len, inputs))
    TokenBudget.of(submit).check_prompt(num_tokens)
    command = EmbedSequences(
        sequence_id=sequence_id(request_id, 0),
        prompts=inputs,
        dimensions=dimensions,
        account=submit.account,
        weight=submit.weight,
        is_anonymous=submit.is_anonymous or submit.yields,
    )
    accepted = Accepted(request_id=request_id, prompt_tokens=num_tokens)
    answer = EmbeddingAnswer(request_id, num_prompt_tokens=num_tokens, num_firsts=num_firsts)
    return accepted, answer, [command], None


def _tool_format(request: GenerationRequest, text: ModelText) -> str | None:
    if not isinstance(request.input, ChatInput) or not request.input.tools:
        return None
    found = text.tool_format_of(request.input)
    return None if found is None else found.name


def _suits(request: Request, text: ModelText) -> bool:
    if isinstance(request, TokenizeRequest) and not isinstance(request.input, ChatInput):
        return True
    kind = text.report.kind
    match request:
        case ScoreRequest():
            return kind in ("embedding", "reranker")
        case EmbeddingRequest():
            return kind == "embedding"
    return kind == "generation"


def _commands(
    submit: Submit, request: GenerationRequest, prepared: Prepared, images: list[SequenceImage]
) -> Iterator[SubmitSequence]:
    request_id = submit.request_id
    for prompt_index, token_ids in enumerate(prepared.prompts):
        first = prompt_index * request.n
        for i in range(request.n):
            yield SubmitSequence(
                sequence_id=sequence_id(request_id, first + i),
                token_ids=token_ids,
                params=_further_params(request, prepared.params, i) if i > 0 else prepared.params,
                same_prompt_as=sequence_id(request_id, first) if i > 0 else None,
                account=submit.account,
                weight=submit.weight,
                is_anonymous=submit.is_anonymous or submit.yields,
                # No account has this name: all anonymous callers share it.
                cache_salt="" if submit.is_anonymous else submit.account,
                adapter=submit.adapter,
                images=images,
                prediction=list(prepared.prediction),
                is_traced=bool(submit.traceparent),
                max_queue_wait_s=submit.max_queue_wait_s,
            )


def _further_params(
    request: GenerationRequest, params: SamplingParams, number: int
) -> SamplingParams:
    if params.seed is not None:
        params = msgspec.structs.replace(params, seed=params.seed + number)
    if request.echo and request.sampling.top_logprobs is not None:
        return params
    return msgspec.structs.replace(params, prompt_logprobs=None)
