"""Keeping, finding and deleting conversations. Each function sees those of one user alone.

Saves are not audited: each answer is one, and what people talk about is theirs.
"""

from __future__ import annotations

import uuid

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from metering.playground.errors import (
    ChangedElsewhereError,
    ConversationTooLargeError,
    TooManyConversationsError,
    UnknownConversationError,
)
from metering.playground.models import Conversation
from metering.playground.state import (
    ConversationState,
    search_text_of,
    searched,
    state_text,
    title_of,
)

MIB = 1024**2
MAX_CONVERSATIONS = 500
"""The most conversations of one user."""
MAX_CONVERSATION_BYTES = 16 * MIB
MAX_CONVERSATIONS_BYTES = 128 * MIB
"""The most bytes of all conversations of one user."""
NEW = 0
"""The revision of a conversation that was never saved."""
LISTED = ("id", "title", "num_bytes", "revision", "updated_at")


def conversations_list(*, user_id: int, words: str = "") -> QuerySet[Conversation]:
    """Those in which ``words`` stand, the latest first, without their states."""
    found = Conversation.objects.filter(user=user_id).only(*LISTED)
    return found.filter(search_text__contains=searched(words)) if words else found


def conversation_find(*, user_id: int, conversation_id: uuid.UUID) -> Conversation:
    """Raises ``UnknownConversationError``."""
    found = Conversation.objects.filter(pk=conversation_id, user=user_id).first()
    if found is None:
        raise UnknownConversationError
    return found


def conversation_save(
    *, user_id: int, conversation_id: uuid.UUID, revision: int, state: ConversationState
) -> Conversation:
    """Saves a new conversation, or the next revision of one. ``revision`` is the one that ``state``
    continues, or ``NEW``. Returns the row. Raises ``ConversationError``."""
    text = state_text(state)
    num_bytes = len(text.encode())
    ensure_size(num_bytes)
    values = {
        "title": title_of(state),
        "state": text,
        "search_text": search_text_of(state),
        "num_bytes": num_bytes,
        "updated_at": timezone.now(),
    }
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user_id)  # one save at a time: they are counted
        _ensure_room(user_id, conversation_id, num_bytes)
        if revision == NEW:
            _create(user_id, conversation_id, values)
        else:
            _update(user_id, conversation_id, revision, values)
    return conversation_find(user_id=user_id, conversation_id=conversation_id)


def conversation_delete(*, user_id: int, conversation_id: uuid.UUID) -> None:
    """Raises ``UnknownConversationError``."""
    num_deleted, _ = Conversation.objects.filter(pk=conversation_id, user=user_id).delete()
    if not num_deleted:
        raise UnknownConversationError


def ensure_size(num_bytes: int) -> None:
    """Raises ``ConversationTooLargeError``."""
    if num_bytes > MAX_CONVERSATION_BYTES:
        raise ConversationTooLargeError(
            f"A conversation is kept up to {MAX_CONVERSATION_BYTES // MIB} MiB, its images "
            "included: start a new one."
        )


def _ensure_room(user_id: int, conversation_id: uuid.UUID, num_bytes: int) -> None:
    """Raises ``TooManyConversationsError``, ``ConversationTooLargeError``."""
    others = Conversation.objects.filter(user=user_id).exclude(pk=conversation_id)
    if others.count() >= MAX_CONVERSATIONS:
        raise TooManyConversationsError(
            f"You have {MAX_CONVERSATIONS} conversations, the most that are kept: delete one."
        )
    used_bytes = others.aggregate(total=Sum("num_bytes"))["total"] or 0
    if used_bytes + num_bytes > MAX_CONVERSATIONS_BYTES:
        raise ConversationTooLargeError(
            f"Your conversations have {MAX_CONVERSATIONS_BYTES // MIB} MiB together, the most that "
            "is kept: delete one."
        )


def _create(user_id: int, conversation_id: uuid.UUID, values: dict[str, object]) -> None:
    """Raises ``ChangedElsewhereError`` where the id is used."""
    made = Conversation(pk=conversation_id, user_id=user_id, **values)
    try:
        with transaction.atomic():
            made.save(force_insert=True)
    except IntegrityError as error:
        raise ChangedElsewhereError from error


def _update(
    user_id: int, conversation_id: uuid.UUID, revision: int, values: dict[str, object]
) -> None:
    """Raises ``ChangedElsewhereError``, ``UnknownConversationError``."""
    own = Conversation.objects.filter(pk=conversation_id, user=user_id)
    if own.filter(revision=revision).update(revision=revision + 1, **values):
        return
    raise ChangedElsewhereError if own.exists() else UnknownConversationError
