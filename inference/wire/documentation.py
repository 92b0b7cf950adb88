"""The field tables of docs/api.md, written from the parsers' own declarations.

``python -m inference.wire.documentation`` rewrites the part of the page between the markers; a test
fails while the page differs. Pure but for ``main``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.common import batch_lines
from inference.wire.common.fields import Field, Support
from inference.wire.ollama import chat as ollama_chat
from inference.wire.ollama import embed as ollama_embed
from inference.wire.ollama import generate as ollama_generate
from inference.wire.ollama import models as ollama_models
from inference.wire.ollama import pull as ollama_pull
from inference.wire.openai import batches as openai_batches
from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.completions import request as openai_completions
from inference.wire.openai.responses import compact as openai_responses_compact
from inference.wire.openai.responses import count as openai_responses_count
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses import websocket as openai_responses_socket
from inference.wire.vllm import rerank
from inference.wire.vllm import score as vllm_score
from inference.wire.vllm import tokenize as vllm_tokenize

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "api.md"
BEGIN, END = "<!-- fields: begin -->", "<!-- fields: end -->"

DIALECTS: dict[str, Mapping[str, Field]] = {
    "POST /v1/chat/completions": openai_chat.FIELDS,
    **{
        f"POST /v1/chat/completions: {what}": fields
        for what, fields in openai_chat.NESTED_FIELDS.items()
    },
    "POST /v1/completions": openai_completions.FIELDS,
    "POST /v1/messages": anthropic_messages.FIELDS,
    **{
        f"POST /v1/messages: {what}": fields
        for what, fields in anthropic_messages.NESTED_FIELDS.items()
    },
    "POST /v1/messages/count_tokens": anthropic_messages.COUNT_FIELDS,
    "POST /api/chat": ollama_chat.FIELDS,
    **{f"POST /api/chat: {what}": fields for what, fields in ollama_chat.NESTED_FIELDS.items()},
    "POST /api/generate": ollama_generate.FIELDS,
    "POST /api/embed": ollama_embed.FIELDS,
    "POST /api/embeddings": ollama_embed.OLD_FIELDS,
    "POST /api/show": ollama_models.SHOW_FIELDS,
    "POST /api/pull": ollama_pull.FIELDS,
    "POST /tokenize": vllm_tokenize.FIELDS,
    "POST /detokenize": vllm_tokenize.BACK_FIELDS,
    "POST /v1/embeddings": openai_embeddings.FIELDS,
    "POST /v1/batches": openai_batches.BATCH_FIELDS,
    "POST /v1/batches: a line of the input file": batch_lines.LINE_FIELDS,
    "POST /v1/messages/batches": anthropic_batches.FIELDS,
    "POST /v1/messages/batches: requests": anthropic_batches.REQUEST_FIELDS,
    "POST /v1/rerank and /v2/rerank": rerank.FIELDS,
    "POST /v1/score": vllm_score.FIELDS,
    "POST /v1/responses": openai_responses.FIELDS,
    **{
        f"POST /v1/responses: {what}": fields
        for what, fields in openai_responses.NESTED_FIELDS.items()
    },
    "WebSocket /v1/responses: beside the fields of POST": openai_responses_socket.OWN_FIELDS,
    "POST /v1/responses/compact": openai_responses_compact.FIELDS,
    "POST /v1/responses/input_tokens": openai_responses_count.FIELDS,
}

VERDICTS = {
    Support.HONOURED: "honoured",
    Support.NEUTRAL: "only a value that changes nothing",
    Support.REFUSED: "refused",
}


def field_tables() -> str:
    return "\n".join(_table(title, fields) for title, fields in DIALECTS.items())


def page_with_tables(page: str) -> str:
    """``page`` with the part between the markers replaced. Raises ``ValueError`` without any."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{field_tables()}\n{END}{after}"


def _table(title: str, fields: Mapping[str, Field]) -> str:
    order = list(Support)
    rows = sorted(fields.values(), key=lambda field: (order.index(field.support), field.name))
    lines = [f"### {title}", "", "| field | | accepted, or why not |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {VERDICTS[row.support]} | {row.note} |" for row in rows]
    return "\n".join([*lines, ""])


def main() -> None:
    PAGE.write_text(page_with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
