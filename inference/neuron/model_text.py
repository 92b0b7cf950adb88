"""The text side of one loaded model: its tokenizer and template, and what they say it can do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.protocol.load import LoadReport, LoadSpec
from inference.text.chat_template import ChatTemplate
from inference.text.reasoning import ReasoningMarkers, find_markers
from inference.text.template_sources import find_templates
from inference.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """Immutable; any thread may use it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    report: LoadReport
    markers: ReasoningMarkers | None = None
    """Of its thinking block; ``None``: it does not think."""
    max_output_tokens: int | None = None
    """The operator's bound on an answer."""

    @classmethod
    def load(cls, spec: LoadSpec, report: LoadReport) -> ModelText:
        """Reads the report's tokenizer directory. Raises ``TextError``."""
        directory = Path(report.tokenizer_dir)
        tokenizer = Tokenizer.load(directory)
        templates = find_templates(directory, spec.chat_template)
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate(templates, tokenizer.special_tokens),
            report=report,
            markers=find_markers(tokenizer, templates.default),
            max_output_tokens=spec.max_output_tokens,
        )
