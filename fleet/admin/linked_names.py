"""Names in the admin's lists and forms that lead to the pages of what they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet.admin.unfold_types import display

Address = Callable[[str], str]
"""Name -> the address of its page."""


def linked(name: str, address: Address, text: str | None = None) -> SafeString | str:
    """``text``, or the name itself, as a link; empty without a name."""
    return (
        format_html('<a class="hx-link" href="{}">{}</a>', address(name), text or name)
        if name
        else ""
    )


def linked_list(names: Iterable[tuple[str, str]], address: Address) -> SafeString:
    """Pairs of a name and a remark on it, which may be empty, with commas between them."""
    rows = ((address(name), name, remark and f" ({remark})") for name, remark in names)
    return format_html_join(", ", '<a class="hx-link" href="{}">{}</a>{}', rows)


def linked_column(field: str, address: Address, description: str) -> Any:
    """A column of an admin's list. ``field`` is the column's name, with ``__`` for related rows."""
    value_of = attrgetter(field.replace("__", "."))

    @display(description=description, ordering=field)
    def column(_page: Any, row: Any) -> SafeString | str:
        return linked(value_of(row) or "", address)

    return column
