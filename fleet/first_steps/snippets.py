"""A first request, and settings of clients, with an address, a key and a model filled in. Pure."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from fleet.management.connect.clients import CLIENTS, Target
from fleet.management.connect.printing import settings_text

SHOWN_CLIENTS = {"claude": "Claude Code", "opencode": "opencode", "open-webui": "Open WebUI"}
QUESTION = "What is the capital of France?"
PYTHON = """from openai import OpenAI

client = OpenAI(base_url={url}, api_key={key})
answer = client.chat.completions.create(
    model={model}, messages=[{{"role": "user", "content": {question}}}]
)
print(answer.choices[0].message.content)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    name: str
    text: str


def snippets(target: Target) -> list[Snippet]:
    return [
        Snippet(name="curl", text=_curl(target)),
        Snippet(name="Python", text=_python(target)),
        *(
            Snippet(name=label, text=settings_text(client, CLIENTS[client](target)))
            for client, label in SHOWN_CLIENTS.items()
        ),
    ]


def _curl(target: Target) -> str:
    body = {"model": target.model, "messages": [{"role": "user", "content": QUESTION}]}
    lines = [
        f"curl {shlex.quote(f'{target.openai_url}/chat/completions')}",
        f"-H {shlex.quote(f'Authorization: Bearer {target.key}')}",
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}",
    ]
    return " \\\n  ".join(lines)


def _python(target: Target) -> str:
    """JSON strings are Python's too."""
    return PYTHON.format(
        url=json.dumps(target.openai_url),
        key=json.dumps(target.key),
        model=json.dumps(target.model, ensure_ascii=False),
        question=json.dumps(QUESTION),
    )
