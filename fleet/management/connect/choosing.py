"""Which model a client is pointed at. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.management.connect.clients import NEED_LIMITS, NEED_TOOLS

Card = Mapping[str, Any]
"""A model as ``GET /v1/models`` lists it."""


class NoModelError(Exception):
    """The message names a model that would do."""


def chosen_card(cards: Sequence[Card], wanted: str | None, client: str) -> Card:
    """The card of ``wanted``, a name or an alias; else of a loaded model that the client can use,
    else of any such model. Raises ``NoModelError``."""
    writing = [card for card in cards if "chat" in (card.get("capabilities") or ["chat"])]
    if wanted is not None:
        return _checked(_named(cards, wanted), writing, client)
    if not writing:
        raise NoModelError("no model that writes text is offered yet: 'models add' offers one")
    usable = [card for card in writing if _lacks(card, client) is None]
    if not usable:
        raise NoModelError(f"no model that is offered will do: {_lacks(writing[0], client)}")
    return min(usable, key=lambda card: not card.get("loaded"))


def _named(cards: Sequence[Card], wanted: str) -> Card:
    by_name = {str(card["id"]): card for card in cards}
    for card in cards:
        for alias in card.get("aliases") or ():
            by_name.setdefault(str(alias), card)
    if wanted in by_name:
        return {**by_name[wanted], "id": wanted}
    near = difflib.get_close_matches(wanted, by_name, n=2)
    hint = f"; there is {' and '.join(near)}" if near else ""
    raise NoModelError(f"no model {wanted} is offered{hint}")


def _checked(card: Card, writing: Sequence[Card], client: str) -> Card:
    if "chat" not in (card.get("capabilities") or ["chat"]):
        raise NoModelError(f"{card['id']} writes no text")
    lack = _lacks(card, client)
    if lack is None:
        return card
    others = [str(one["id"]) for one in writing if _lacks(one, client) is None]
    hint = f"; {', '.join(others[:3])} will do" if others else ""
    raise NoModelError(f"{lack}{hint}")


def _lacks(card: Card, client: str) -> str | None:
    """Abilities that only a first load shows count as there; limits do not."""
    if client in NEED_TOOLS and card.get("tool_call") is False:
        return f"{client} sends tools, and the chat template of {card['id']} has no place for them"
    if client in NEED_LIMITS and not card.get("limit"):
        return (
            f"the settings of {client} name the model's context, and {card['id']} was never loaded"
        )
    return None
