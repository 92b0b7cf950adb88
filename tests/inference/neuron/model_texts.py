"""The text side of a model that is only a tokenizer directory, and what it makes of requests; a
starter whose engine, in this process, records what it is sent and answers nothing."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.request_table import RequestTable
from inference.neuron.requests.starter import Starter
from inference.neuron.text.model_text import ModelText, load_text
from inference.neuron.text.output_rules import TokenBudget
from inference.neuron.text.prompts import Prepared, prepare
from inference.protocol.engine import EmbedSequences, SubmitSequence
from inference.protocol.events import Event, Failure
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    Request,
    SamplingOptions,
    Submit,
    TextInput,
    TokensInput,
)
from inference.protocol.load import LoadSpec
from tests.inference.reports import load_report
from tests.sandbox_workers import WORKERS

CHAT_TEMPLATE = (
    "{% if tools %}<call>{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""A template with a place for tools, and none for thinking."""


def template_file(template: str) -> str:
    """A file with that text, as a load spec names it. Other processes of the run read it: it is
    whole at any time."""
    folder = Path(tempfile.gettempdir()) / "helexa-test-templates"
    folder.mkdir(exist_ok=True)
    path = folder / f"{hashlib.sha256(template.encode()).hexdigest()}.jinja"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(template)
    part.replace(path)
    return f"file:{path}"


def model_text(
    directory: Path,
    *,
    chat_template: str | None = None,
    max_output_tokens: int | None = None,
    **report: object,
) -> ModelText:
    """A context of 100 tokens, 1000 in the vocabulary, ended by token 2; ``report`` changes it."""
    spec = LoadSpec(
        job_id="j",
        model="m",
        source="fake:",
        chat_template=None if chat_template is None else template_file(chat_template),
        max_output_tokens=max_output_tokens,
    )
    loaded = load_report(**{"architecture": "fake", "tokenizer_dir": str(directory)} | report)
    return load_text(spec, loaded, WORKERS)


def request_for_model(given: Any = None, **request: Any) -> GenerationRequest:
    """Returns a request of 90 tokens, unless its input is ``given``. Fields of the request and
    options of its sampling are told apart."""
    fields = GenerationRequest.__struct_fields__
    options = {name: request.pop(name) for name in [*request] if name not in fields}
    if options:
        request["sampling"] = SamplingOptions(**options)
    return GenerationRequest(model="m", input=given or TokensInput(prompts=[[5] * 90]), **request)


def prepared(text: ModelText, given: Any = None, **request: Any) -> Prepared:
    return prepare(request_for_model(given, **request), text)


def refusal(
    text: ModelText, given: Any = None, budget: TokenBudget | None = None, **request: Any
) -> Failure:
    with pytest.raises(RequestRefusedError) as refused:
        prepare(request_for_model(given, **request), text, budget or TokenBudget())
    return refused.value.failure


THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}"
OPENS = THINKS + "{% if enable_thinking is not false %}<think>\n{% endif %}"


def a_chat(content: str = "Hi", **kwargs: Any) -> ChatInput:
    return ChatInput(messages=[ChatMessage(role="user", content=content)], **kwargs)


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
