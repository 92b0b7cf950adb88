"""Loads the text side of a model: its tokenizer, templates and formats, tried with short
conversations, so that a template that cannot render one is known before the first request."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import msgspec

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.model_text import LOSES_SYSTEM_TURNS, ModelText, tokenizer_facts
from inference.protocol.generation import ChatInput, ChatMessage, ToolCall, ToolDefinition
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_report import LoadReport
from inference.sandbox.jobs import WorkerLostError
from inference.sandbox.pool import WorkerPool
from inference.text.answers.phrases import find_phrases
from inference.text.answers.reasoning import find_markers
from inference.text.templates.template_sources import find_templates
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls import find_tool_format
from inference.version import VERSION

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
    """Reads the report's tokenizer directory. Raises ``TextError``."""
    directory = Path(report.tokenizer_dir)
    tokenizer = Tokenizer.load(directory, is_decoded=report.kind == "generation")
    templates = find_templates(directory, spec.chat_template)
    markers = find_markers(tokenizer, templates.default)
    facts = tokenizer_facts(tokenizer, report)
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
        report = msgspec.structs.replace(report, template_problem=template_problem(text))
        if markers is None or markers.channels is None:
            report = with_turn_end(report, text)
    return replace(text, report=report, fingerprint=fingerprint(spec, report))


def template_problem(text: ModelText) -> str | None:
    """Describes what the model's template cannot render even in a short conversation; ``None``:
    nothing."""
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


def with_turn_end(report: LoadReport, text: ModelText) -> LoadReport:
    """The report, with the token with which the chat template ends an answer added to its ends:
    without it an answer would run on into the next turn. Unchanged where the files declare that
    token, or the template writes no marker there."""
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
