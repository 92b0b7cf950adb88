"""The text side of one loaded model: tokenizer, template, capabilities, and jobs for the sandbox.

Schemas, grammars and chat templates are compiled and rendered in workers, never in this process
(``inference.sandbox``).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from inference.neuron.errors import BUSY_RETRY_AFTER_S, RequestRefusedError, refused, retryable
from inference.protocol.generation import ChatInput, ChatMessage, ToolCall, ToolDefinition
from inference.protocol.heartbeat import Capability
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_report import LoadReport, ModelLimit, model_limit
from inference.recent_results import RecentResults
from inference.sandbox.jobs import (
    BuildGrammar,
    Built,
    Job,
    NotWantedError,
    NoWorkerError,
    Refused,
    RenderChat,
    Rendered,
    Result,
    TokenizerFacts,
    WorkerLostError,
)
from inference.sandbox.pool import WorkerPool
from inference.text.phrases import PhraseMarkers, find_phrases
from inference.text.reasoning import ReasoningMarkers, find_markers
from inference.text.template_sources import TemplateSources, find_templates
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls import FORMATS, find_tool_format
from inference.text.tool_calls.call_parser import CallFormat
from inference.version import VERSION

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 512 * 1024
"""The most checked schemas and grammars that are kept for a model."""
MAX_LOGGED = 16
LOSES_SYSTEM_TURNS = "the model's chat template rewrites or drops system turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """Immutable; any thread may use it. Its jobs for workers block."""

    name: str
    tokenizer: Tokenizer
    templates: TemplateSources
    report: LoadReport
    pool: WorkerPool
    facts: TokenizerFacts | None = None
    """Workers keep these tokens as long as this is referenced; ``None``: no grammars."""
    results: RecentResults[Result] = field(
        default_factory=lambda: RecentResults(MAX_KEPT_BYTES, _kept_bytes)
    )
    logged: set[str] = field(default_factory=set)
    is_wanted: Callable[[], bool] = lambda: True
    markers: ReasoningMarkers | None = None
    """``None``: it does not think, or between phrases."""
    phrases: PhraseMarkers | None = None
    """For a model without single marker tokens."""
    tool_format: CallFormat | None = None
    """``None``: its template takes no tools, or in an unknown format."""
    max_output_tokens: int | None = None
    fingerprint: str = ""

    def of(self, is_wanted: Callable[[], bool]) -> ModelText:
        """A copy whose jobs end when ``is_wanted`` turns false."""
        return replace(self, is_wanted=is_wanted)

    def tool_format_of(self, chat: ChatInput) -> CallFormat | None:
        """A forced call of an unknown format is plain JSON, by its grammar."""
        is_forced = chat.tool_choice.mode == "required"
        return self.tool_format or (FORMATS["plain"] if is_forced else None)

    @property
    def limit(self) -> ModelLimit:
        only_reads = self.report.kind != "generation"
        return model_limit(
            self.report.context_tokens, self.max_output_tokens, only_reads=only_reads
        )

    @property
    def capabilities(self) -> list[Capability]:
        if self.report.kind == "embedding":
            return ["embeddings"]
        if self.report.kind == "reranker":
            return ["rerank"]
        found: list[Capability] = ["chat", "completions", "logprobs"]
        if self.report.grammar_problem is None:
            found.append("structured_output")
        if self.tool_format is not None:
            found.append("tool_call")
        if self.report.vision is not None:
            found.append("vision")
        thinks = self.markers is not None and self._template_thinks(self.markers)
        if thinks or self.phrases is not None:
            found.append("reasoning")
        return found

    def _template_thinks(self, markers: ReasoningMarkers) -> bool:
        """Some models inherit the markers from a relative that thinks, and never write them."""
        template = self.templates.default or ""
        return markers.opens in template or markers.closes in template or "thinking" in template

    def render(self, chat: ChatInput) -> str:
        """Raises ``RequestRefusedError``."""
        try:
            rendered = self.rendering(chat)
        except WorkerLostError as lost:
            self._log_once(f"its chat template {lost.reason} for a conversation")
            message = f"this model's chat template {lost.reason} for this conversation"
            raise refused("template_limit_exceeded", message) from None
        if rendered.loses_system_turns:
            self._log_once(LOSES_SYSTEM_TURNS)
        return rendered.text

    def rendering(self, chat: ChatInput) -> Rendered:
        """Raises ``WorkerLostError``, ``RequestRefusedError``."""
        job = RenderChat(
            default_template=self.templates.default,
            tool_template=self.templates.tool_use,
            special_tokens=self.tokenizer.special_tokens,
            chat=chat,
        )
        result = self._accepted(self._run(job))
        assert isinstance(result, Rendered)
        return result

    def grammar(self, job: BuildGrammar) -> Built:
        """Raises ``RequestRefusedError``."""
        if self.facts is not None:
            job = msgspec.structs.replace(job, tokenizer=self.facts.digest)
        try:
            result = self.results.get(repr(job), lambda _: self._run(job))
        except WorkerLostError as lost:
            log.warning("a grammar for %s %s: refused", self.name, lost.reason)
            message = f"it cannot be compiled: the compiler {lost.reason}"
            is_only_tool = len(job.tools) == 1 and job.output_format is None
            path = job.tools[0].path if is_only_tool else job.path
            message = message if path is None else f"{path}: {message}"
            raise refused("invalid_grammar", message, param=path) from None
        except RecursionError:
            message = f"{job.path}: it is nested too deeply"
            raise refused("invalid_schema", message, param=job.path) from None
        result = self._accepted(result)
        assert isinstance(result, Built)
        return result

    def _accepted(self, result: Result) -> Result:
        if isinstance(result, Refused):
            raise refused(result.code, result.message, param=result.param)
        return result

    def _run(self, job: Job) -> Result:
        try:
            return self.pool.run(job, self.is_wanted)
        except NoWorkerError as error:
            message = f"this neuron has no worker for templates and grammars: {error}"
            failure = retryable("queue_timeout", message, BUSY_RETRY_AFTER_S)
            raise RequestRefusedError(failure) from None
        except NotWantedError:  # its request has ended: this is never sent
            message = "the request was cancelled while it was prepared"
            raise refused("cancelled", message, param=None) from None

    def _log_once(self, what: str) -> None:
        if what not in self.logged and len(self.logged) < MAX_LOGGED:
            self.logged.add(what)
            log.warning("%s: %s", self.name, what)


def _tokenizer_facts(tokenizer: Tokenizer, report: LoadReport) -> TokenizerFacts | None:
    if report.kind != "generation" or report.grammar_problem is not None:
        return None
    tokens = [tokenizer.bytes_of(token_id) for token_id in range(report.vocab_size)]
    special = sorted(one for one in tokenizer.special_token_ids if one < report.vocab_size)
    facts = TokenizerFacts(
        digest="", tokens=tokens, special_token_ids=special, end_token_ids=report.eos_token_ids
    )
    digest = hashlib.sha256(msgspec.msgpack.encode(facts)).hexdigest()
    return msgspec.structs.replace(facts, digest=digest)


def _kept_bytes(key: str, result: Result) -> int:
    return len(result.grammar.text) if isinstance(result, Built) else 0


SYSTEM = ChatMessage(role="system", content="Answer briefly.")
TURNS = [
    ChatMessage(role="user", content="Hello"),
    ChatMessage(role="assistant", content="Hello!"),
    ChatMessage(role="user", content="How are you?"),
]
CALL = ToolCall(id="call_1", name="current_time", arguments='{"zone": "UTC"}')
SHORT_CHAT = ChatInput(messages=TURNS)
SYSTEM_CHAT = ChatInput(messages=[SYSTEM, *TURNS])
TOOL_CHAT = ChatInput(
    messages=[
        TURNS[0],
        ChatMessage(role="assistant", tool_calls=[CALL]),
        ChatMessage(role="tool", tool_call_id=CALL.id, name=CALL.name, content="12:00"),
        *TURNS[1:],
    ],
    tools=[
        ToolDefinition(
            name=CALL.name,
            path="tools[0]",
            description="Reports the time.",
            parameters={"type": "object", "properties": {"zone": {"type": "string"}}},
        )
    ],
)


def load_text(spec: LoadSpec, report: LoadReport, pool: WorkerPool) -> ModelText:
    """Raises ``TextError``."""
    directory = Path(report.tokenizer_dir)
    tokenizer = Tokenizer.load(directory, is_decoded=report.kind == "generation")
    templates = find_templates(directory, spec.chat_template)
    markers = find_markers(tokenizer, templates.default)
    facts = _tokenizer_facts(tokenizer, report)
    text = ModelText(
        name=spec.model,
        tokenizer=tokenizer,
        templates=templates,
        report=report,
        pool=pool,
        facts=None if facts is None else pool.keep_tokenizer(facts),
        markers=markers,
        phrases=find_phrases(templates.default) if markers is None else None,
        tool_format=find_tool_format(templates.for_tools, tokenizer),
        max_output_tokens=spec.max_output_tokens,
    )
    if report.kind == "generation":
        report = msgspec.structs.replace(report, template_problem=_template_problem(text))
        if markers is None or markers.channels is None:
            report = _with_turn_end(report, text)
    return replace(text, report=report, fingerprint=_fingerprint(spec, report))


def _template_problem(text: ModelText) -> str | None:
    if text.templates.default is None:
        return "the model has no chat template; conversations are written as ChatML"
    trials = {"": SHORT_CHAT, "with a system turn ": SYSTEM_CHAT}
    if text.templates.for_tools is not None:
        trials["with tools "] = TOOL_CHAT
    problems: list[str] = []
    for what, chat in trials.items():
        try:
            if text.rendering(chat).loses_system_turns:
                problems.append(LOSES_SYSTEM_TURNS)
        except WorkerLostError as lost:
            problem = f"the model's chat template {lost.reason} for a short conversation"
            problems.append(what + problem)
        except RequestRefusedError as error:
            problems.append(f"{what}{error}")
        if chat is SHORT_CHAT and problems:
            break
    return "; ".join(problems) or None


def _fingerprint(spec: LoadSpec, report: LoadReport) -> str:
    decisive = (
        VERSION,
        spec_digest(spec),
        *(report.architecture, report.device, report.dtype, report.quantization),
        *(report.kv_dtype, report.compiled, report.generation_defaults),
    )
    return "fp_" + hashlib.sha256(msgspec.json.encode(decisive)).hexdigest()[:10]


MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]{2,}\]")


def _with_turn_end(report: LoadReport, text: ModelText) -> LoadReport:
    """Without its template's turn end an answer would run on into the next turn."""
    try:
        rendered = text.rendering(SHORT_CHAT).text
    except (RequestRefusedError, WorkerLostError):
        return report
    _, answer, question = (message.content or "" for message in SHORT_CHAT.messages)
    behind = rendered.partition(answer)[2].partition(question)[0].strip()
    token_ids = text.tokenizer.encode(behind, add_special_tokens=False)
    if not token_ids or not set(token_ids).isdisjoint(report.eos_token_ids):
        return report
    marker = text.tokenizer.bytes_of(token_ids[0]).decode(errors="replace").strip()
    if not MARKER.fullmatch(marker):
        return report
    words = (
        f"the chat template writes {marker} behind an answer, and the model's files do not declare "
        "it as an end: answers end there too"
    )
    return msgspec.structs.replace(
        report,
        eos_token_ids=[*report.eos_token_ids, token_ids[0]],
        warnings=[*report.warnings, words],
    )
