"""The text side of one loaded model: its tokenizer and template, and the capabilities they show."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.text_jobs import SHORT_CHAT, TextJobs
from inference.protocol.generation import ChatInput
from inference.protocol.heartbeat import Capability
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_report import LoadReport
from inference.protocol.model_limit import ModelLimit, model_limit
from inference.sandbox.errors import WorkerLostError
from inference.sandbox.pool import Caller, WorkerPool
from inference.text.answers.parts import ToolFormat
from inference.text.answers.phrases import PhraseMarkers, find_phrases
from inference.text.answers.reasoning import ReasoningMarkers, find_markers
from inference.text.errors import TemplateRenderError
from inference.text.templates.template_sources import TemplateSources, find_templates
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.json_formats import PlainFormat
from inference.text.tool_calls.registry import find_tool_format
from inference.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """Immutable; any thread may use it."""

    tokenizer: Tokenizer
    templates: TemplateSources
    jobs: TextJobs
    """Runs its templates and grammars in sandbox workers."""
    report: LoadReport
    markers: ReasoningMarkers | None = None
    """The markers of its thinking block; ``None``: it does not think, or between phrases."""
    phrases: PhraseMarkers | None = None
    """The phrases around its reasoning, for a model without single marker tokens."""
    tool_format: ToolFormat | None = None
    """The format of its tool calls; ``None``: its template takes no tools, or in an unknown
    format."""
    max_output_tokens: int | None = None
    fingerprint: str = ""
    """A digest of its files, settings and device, and of this release."""

    @classmethod
    def load(cls, spec: LoadSpec, report: LoadReport, pool: WorkerPool) -> ModelText:
        """Reads the report's tokenizer directory. Raises ``TextError``."""
        directory = Path(report.tokenizer_dir)
        tokenizer = Tokenizer.load(directory, is_decoded=report.kind == "generation")
        templates = find_templates(directory, spec.chat_template)
        markers = find_markers(tokenizer, templates.default)
        jobs = TextJobs.load(
            pool, model=spec.model, sources=templates, tokenizer=tokenizer, report=report
        )
        if report.kind == "generation":
            report = msgspec.structs.replace(report, template_problem=jobs.try_template())
            if markers is None or markers.channels is None:
                report = with_turn_end(report, jobs, tokenizer)
        return cls(
            tokenizer=tokenizer,
            templates=templates,
            jobs=jobs,
            report=report,
            markers=markers,
            phrases=find_phrases(templates.default) if markers is None else None,
            tool_format=find_tool_format(templates.for_tools, tokenizer),
            max_output_tokens=spec.max_output_tokens,
            fingerprint=fingerprint(spec, report),
        )

    def of(self, caller: Caller) -> ModelText:
        """The same, whose jobs are done on behalf of ``caller``."""
        return replace(self, jobs=self.jobs.of(caller))

    def tool_format_of(self, chat: ChatInput) -> ToolFormat | None:
        """The format of this answer's calls. A model of an unknown format writes a forced call in
        plain JSON, which its grammar has."""
        is_forced = chat.tool_choice.mode == "required"
        return self.tool_format or (PlainFormat() if is_forced else None)

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


def fingerprint(spec: LoadSpec, report: LoadReport) -> str:
    """Differs where the same request with the same seed may get other tokens."""
    decisive = (
        VERSION,
        spec_digest(spec),
        *(report.architecture, report.device, report.dtype, report.quantization),
        *(report.kv_dtype, report.compiled, report.generation_defaults),
    )
    return "fp_" + hashlib.sha256(msgspec.json.encode(decisive)).hexdigest()[:10]


MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]{2,}\]")


def with_turn_end(report: LoadReport, jobs: TextJobs, tokenizer: Tokenizer) -> LoadReport:
    """The report, with the token with which the chat template ends an answer added to its ends:
    without it an answer would run on into the next turn. Unchanged where the files declare that
    token, or the template writes no marker there."""
    try:
        text = jobs.rendering(SHORT_CHAT).text
    except (TemplateRenderError, RequestRefusedError, WorkerLostError):
        return report
    _, answer, question = (message.content or "" for message in SHORT_CHAT.messages)
    behind = text.partition(answer)[2].partition(question)[0].strip()
    token_ids = tokenizer.encode(behind, add_special_tokens=False)
    if not token_ids or not set(token_ids).isdisjoint(report.eos_token_ids):
        return report
    marker = tokenizer.bytes_of(token_ids[0]).decode(errors="replace").strip()
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
