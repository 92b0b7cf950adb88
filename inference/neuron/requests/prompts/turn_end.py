"""The token with which a model's chat template ends an answer and that its files do not declare as
an end: without it an answer would run on into the next turn."""

from __future__ import annotations

import re

import msgspec

from inference.neuron.errors import RequestRefusedError
from inference.neuron.requests.prompts.text_jobs import SHORT_CHAT, TextJobs
from inference.protocol.load_report import LoadReport
from inference.sandbox.errors import WorkerLostError
from inference.text.errors import TemplateRenderError
from inference.text.tokens.tokenizer import Tokenizer

MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]{2,}\]")


def with_turn_end(report: LoadReport, jobs: TextJobs, tokenizer: Tokenizer) -> LoadReport:
    """The same report where what the template writes behind an answer has a declared end, or begins
    with no marker."""
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
