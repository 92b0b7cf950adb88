"""Conversations of the page. Each function of the database sees those of one user alone. Saves are
not audited: each answer is one, and conversations are private."""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime
from typing import Any, Literal

import msgspec
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from metering.playground.models import Conversation


class ConversationError(Exception):
    """``str`` of it is written for the person."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def invalid(message: str) -> ConversationError:
    return ConversationError(400, "invalid_value", message)


def unknown() -> ConversationError:
    return ConversationError(
        404, "not_found", "You have no such conversation: it may have been deleted."
    )


def changed_elsewhere() -> ConversationError:
    message = "The conversation was changed in another tab or browser since."
    return ConversationError(409, "changed_elsewhere", message)


def too_large(message: str) -> ConversationError:
    return ConversationError(413, "too_large", message)


MAX_TITLE_CHARS = 60
NO_TITLE = "New conversation"


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""
    name: str = ""
    arguments: str = ""
    result: str = ""


class Spoken(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    text: str = ""
    model: str = ""
    thinking: str = ""
    calls: list[ToolCall] = []
    finish: str = ""
    error: str = ""
    request_id: str = ""
    stats: dict[str, bool | int | float | None] | None = None
    is_running: bool = False
    """The page was left before it ended."""


class Answer(Spoken, forbid_unknown_fields=True, rename="camel", kw_only=True):
    role: Literal["assistant"] = "assistant"


class Turn(Spoken, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """``beside``: the answers of further models."""

    role: Literal["user", "assistant"]
    images: list[str] = []
    beside: list[Answer] = []


class ConversationState(msgspec.Struct, forbid_unknown_fields=True):
    turns: list[Turn]
    model: str = ""
    beside: list[str] = []
    account: str = ""
    system: str = ""
    sampling: dict[str, str] = {}
    thinking: str = ""
    tools: str = ""
    schema: str = ""


def parse_state(body: bytes) -> ConversationState:
    """Raises ``ConversationError``."""
    try:
        return msgspec.json.decode(body, type=ConversationState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"This is no conversation: {error}.") from error


def title_of(state: ConversationState) -> str:
    first = next((turn.text for turn in state.turns if turn.role == "user"), "")
    return " ".join(printable(first).split())[:MAX_TITLE_CHARS] or NO_TITLE


def search_text_of(state: ConversationState) -> str:
    texts = [state.system]
    for turn in state.turns:
        texts += [turn.text, turn.thinking, *(answer.text for answer in turn.beside)]
    return searched("\n".join(filter(None, texts)))


def searched(words: str) -> str:
    return printable(words).casefold()


def printable(text: str) -> str:
    return text.replace("\x00", "")


MIB = 1024**2
MAX_CONVERSATIONS = 500
MAX_CONVERSATION_BYTES = 16 * MIB
MAX_CONVERSATIONS_BYTES = 128 * MIB
NEW = 0
"""The revision of a conversation that was never saved."""
LISTED = ("id", "title", "num_bytes", "revision", "updated_at")


def conversations_list(*, user_id: int, words: str = "") -> QuerySet[Conversation]:
    """The latest first, without their states."""
    found = Conversation.objects.filter(user=user_id).only(*LISTED)
    return found.filter(search_text__contains=searched(words)) if words else found


def conversation_find(*, user_id: int, conversation_id: uuid.UUID) -> Conversation:
    """Raises ``ConversationError``."""
    found = Conversation.objects.filter(pk=conversation_id, user=user_id).first()
    if found is None:
        raise unknown()
    return found


def conversation_save(
    *, user_id: int, conversation_id: uuid.UUID, revision: int, state: ConversationState
) -> Conversation:
    """``revision``: the one that ``state`` continues, or ``NEW``. Raises ``ConversationError``."""
    content = msgspec.json.encode(state)
    num_bytes = len(content)
    ensure_size(num_bytes)
    values = {
        "title": title_of(state),
        "state": content.decode(),
        "search_text": search_text_of(state),
        "num_bytes": num_bytes,
        "updated_at": timezone.now(),
    }
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user_id)  # one save at a time: they are counted
        _ensure_room(user_id, conversation_id, num_bytes)
        own = Conversation.objects.filter(pk=conversation_id, user=user_id)
        if revision != NEW:
            if not own.filter(revision=revision).update(revision=revision + 1, **values):
                raise changed_elsewhere() if own.exists() else unknown()
        elif Conversation.objects.filter(pk=conversation_id).exists():
            raise changed_elsewhere()
        else:
            Conversation.objects.create(pk=conversation_id, user_id=user_id, **values)
    return conversation_find(user_id=user_id, conversation_id=conversation_id)


def conversation_delete(*, user_id: int, conversation_id: uuid.UUID) -> None:
    """Raises ``ConversationError``."""
    num_deleted, _ = Conversation.objects.filter(pk=conversation_id, user=user_id).delete()
    if not num_deleted:
        raise unknown()


def ensure_size(num_bytes: int) -> None:
    """Raises ``ConversationError``."""
    if num_bytes > MAX_CONVERSATION_BYTES:
        raise too_large(
            f"A conversation is kept up to {MAX_CONVERSATION_BYTES // MIB} MiB, its images "
            "included: start a new one."
        )


def _ensure_room(user_id: int, conversation_id: uuid.UUID, num_bytes: int) -> None:
    others = Conversation.objects.filter(user=user_id).exclude(pk=conversation_id)
    if others.count() >= MAX_CONVERSATIONS:
        message = f"You have {MAX_CONVERSATIONS} conversations, the most that are kept: delete one."
        raise ConversationError(409, "too_many", message)
    used_bytes = others.aggregate(total=Sum("num_bytes"))["total"] or 0
    if used_bytes + num_bytes > MAX_CONVERSATIONS_BYTES:
        raise too_large(
            f"Your conversations have {MAX_CONVERSATIONS_BYTES // MIB} MiB together, the most that "
            "is kept: delete one."
        )


FENCE = re.compile(r"`{3,}")


def as_json(state: dict[str, Any], *, title: str, updated_at: datetime) -> str:
    whole = {"title": title, "updated_at": updated_at.isoformat(), **state}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def as_markdown(state: ConversationState, *, title: str, updated_at: datetime) -> str:
    parts = [f"# {title}", f"{updated_at:%Y-%m-%d %H:%M} UTC"]
    if state.system:
        parts += ["## System prompt", state.system]
    for turn in state.turns:
        if turn.role == "user":
            images = [f"![Image {number}]({url})" for number, url in enumerate(turn.images, 1)]
            parts += ["## Question", *images, *filter(None, [turn.text])]
        else:
            parts += [part for answer in (turn, *turn.beside) for part in _answer(answer)]
    return "\n\n".join(parts) + "\n"


def _answer(answer: Spoken) -> list[str]:
    parts = [f"## Answer of {answer.model}" if answer.model else "## Answer"]
    if answer.thinking:
        parts.append("\n".join(f"> {line}".rstrip() for line in answer.thinking.splitlines()))
    if answer.text:
        parts.append(answer.text)
    for call in answer.calls:
        parts += _call(call)
    if answer.error:
        parts.append(f"*{answer.error}*")
    return parts


def _call(call: ToolCall) -> list[str]:
    parts = [f"Call of `{call.name}`:", _block(call.arguments, "json")]
    return [*parts, "Result:", _block(call.result, "")] if call.result else parts


def _block(text: str, language: str) -> str:
    fence = "`" * max([3, *(len(found) + 1 for found in FENCE.findall(text))])
    return f"{fence}{language}\n{text}\n{fence}"
