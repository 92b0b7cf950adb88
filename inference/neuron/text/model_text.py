"""The text side of one loaded model: its tokenizer and template, the capabilities they show, and a
request's jobs for the sandbox, with its client's answer where one has no result.

Schemas, grammars and chat templates are compiled and rendered in workers, never in this process
(``inference.sandbox``). What a grammar came to is kept for the next request that has the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from inference.neuron.errors import (
    RequestRefusedError,
    cancelled,
    invalid_grammar,
    no_worker,
    template_limit_exceeded,
)
from inference.protocol.events import Failure
from inference.protocol.generation import ChatInput
from inference.protocol.heartbeat import Capability
from inference.protocol.load_report import LoadReport
from inference.protocol.model_limit import ModelLimit, model_limit
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
from inference.text.answers.phrases import PhraseMarkers
from inference.text.answers.reasoning import ReasoningMarkers
from inference.text.templates.template_sources import TemplateSources
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls import FORMATS
from inference.text.tool_calls.call_parser import CallFormat

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 512 * 1024
"""The most that checked schemas and grammars take that are kept, for each model."""
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
    """Workers know these tokens for as long as this is referred to; ``None`` where answers cannot
    be held to a grammar."""
    results: RecentResults[Result] = field(
        default_factory=lambda: RecentResults(MAX_KEPT_BYTES, _kept_bytes)
    )
    logged: set[str] = field(default_factory=set)
    is_wanted: Callable[[], bool] = lambda: True
    markers: ReasoningMarkers | None = None
    """The markers of its thinking block; ``None``: it does not think, or between phrases."""
    phrases: PhraseMarkers | None = None
    """The phrases around its reasoning, for a model without single marker tokens."""
    tool_format: CallFormat | None = None
    """The format of its tool calls; ``None``: its template takes no tools, or in an unknown
    format."""
    max_output_tokens: int | None = None
    fingerprint: str = ""
    """A digest of its files, settings and device, and of this release."""

    def of(self, is_wanted: Callable[[], bool]) -> ModelText:
        """The same, whose jobs end when their result is not wanted any more."""
        return replace(self, is_wanted=is_wanted)

    def tool_format_of(self, chat: ChatInput) -> CallFormat | None:
        """The format of this answer's calls. A model of an unknown format writes a forced call in
        plain JSON, which its grammar has."""
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
        """Some models have the markers from a relative that thinks and never write them."""
        template = self.templates.default or ""
        return markers.opens in template or markers.closes in template or "thinking" in template

    def render(self, chat: ChatInput) -> str:
        """Raises ``RequestRefusedError``."""
        try:
            rendered = self.rendering(chat)
        except WorkerLostError as lost:
            self._log_once(f"its chat template {lost.reason} for a conversation")
            raise RequestRefusedError(template_limit_exceeded(str(lost.reason))) from None
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
            raise RequestRefusedError(invalid_grammar(message, path)) from None
        except RecursionError:
            message = f"{job.path}: it is nested too deeply"
            failure = Failure(code="invalid_schema", message=message, param=job.path)
            raise RequestRefusedError(failure) from None
        result = self._accepted(result)
        assert isinstance(result, Built)
        return result

    def _accepted(self, result: Result) -> Result:
        if isinstance(result, Refused):
            failure = Failure(code=result.code, message=result.message, param=result.param)
            raise RequestRefusedError(failure)
        return result

    def _run(self, job: Job) -> Result:
        try:
            return self.pool.run(job, self.is_wanted)
        except NoWorkerError as error:
            raise RequestRefusedError(no_worker(str(error))) from None
        except NotWantedError:
            raise RequestRefusedError(cancelled()) from None

    def _log_once(self, what: str) -> None:
        if what not in self.logged and len(self.logged) < MAX_LOGGED:
            self.logged.add(what)
            log.warning("%s: %s", self.name, what)


def tokenizer_facts(tokenizer: Tokenizer, report: LoadReport) -> TokenizerFacts | None:
    """``None`` where no answer of the model can be held to a grammar."""
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
