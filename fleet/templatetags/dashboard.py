"""The rows of replicas on the board. There may be a thousand of them every two seconds, which as a
template's loop take half a second: here they are plain text, and everything in it is escaped."""

from __future__ import annotations

from html import escape

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from fleet.dashboard.rows import NeuronRow, ReplicaRow

register = template.Library()


@register.simple_tag
def replica_rows(neuron: NeuronRow, may_operate: bool) -> SafeString:
    """``may_operate``: whether whoever looks may unload and reload."""
    return mark_safe("".join(_row(one, neuron.name, may_operate) for one in neuron.replicas))


def _row(replica: ReplicaRow, neuron: str, may_operate: bool) -> str:
    cells = (
        _status(replica, may_operate),
        escape(replica.devices),
        f"{replica.running}",
        f"{replica.waiting}",
        _kv(replica.kv_percent),
        escape(replica.tokens_per_s),
    )
    model = f'<a href="{escape(replica.url)}">{escape(replica.model)}</a>'
    buttons = _buttons(replica, neuron) if may_operate else ""
    return (
        f'<tr><th scope="row">{model}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}'
        f'<td class="hx-actions">{buttons}</td></tr>'
    )


def _status(replica: ReplicaRow, may_operate: bool) -> str:
    parts = [_label(replica.tone, replica.status)]
    if replica.is_outdated:
        parts.append(_label("warning", "outdated"))
    if replica.remark:
        parts.append(f'<div class="hx-remark">{escape(replica.remark)}</div>')
    if replica.progress is not None:
        perms = {"fleet": {"change_cataloguemodel": may_operate}}
        context = {"progress": replica.progress, "perms": perms}
        parts.append(render_to_string("fleet/progress.html", context))
    return " ".join(parts)


def _label(tone: str, words: str) -> str:
    return f'<span class="hx-label hx-{escape(tone)}">{escape(words)}</span>'


def _kv(percent: int | None) -> str:
    if percent is None:
        return ""
    return (
        f'<meter min="0" max="100" value="{percent}" aria-label="KV blocks in use">{percent} %'
        f"</meter> {percent} %"
    )


def _buttons(replica: ReplicaRow, neuron: str) -> str:
    unload = _button("unload", replica, f"Unload {replica.model} from {neuron}", "Unload")
    if not replica.is_outdated:
        return unload
    return f"{unload} {_button('reload', replica, f'Reload {replica.model} on {neuron}', 'Reload')}"


def _button(verb: str, replica: ReplicaRow, label: str, words: str) -> str:
    return (
        f'<button class="hx-button" id="{verb}-{replica.id}" name="do" '
        f'value="{verb} replica {replica.id}" aria-label="{escape(label)}">{words}</button>'
    )
