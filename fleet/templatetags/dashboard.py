"""Sizes and counts in words; and the board's devices and replicas.

There may be hundreds of the ones and a thousand of the others every two seconds, which as a
template's loops take most of a second: here they are plain text, and everything in it is escaped.
"""

from __future__ import annotations

from html import escape

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from fleet.dashboard.rows import DeviceRow, NeuronRow, ReplicaRow, SegmentRow
from fleet.dashboard.words import count_words
from fleet.management.sizes import size_text

register = template.Library()
register.filter("size", size_text)
register.filter("count", count_words)


@register.simple_tag
def device_bars(neuron: NeuronRow) -> SafeString:
    """Each device with its memory as a bar."""
    return mark_safe("".join(map(_device, neuron.devices)))


def _device(device: DeviceRow) -> str:
    summary = f"{device.memory}, {device.readings}" if device.readings else device.memory
    held = ", ".join(segment.label for segment in device.segments)
    return (
        '<div class="hx-device"><div class="hx-head">'
        f"<span><strong>{escape(device.id)}</strong> {escape(device.name)}</span>"
        f'<span class="hx-quiet">{escape(summary)}</span></div>'
        f'<div class="hx-memory" role="img" aria-label="Memory of {escape(device.id)}: '
        f'{escape(held)}">{"".join(map(_segment, device.segments))}</div></div>'
    )


def _segment(segment: SegmentRow) -> str:
    return (
        f'<span class="hx-segment hx-color-{segment.color}" style="width: {segment.percent}%" '
        f'title="{escape(segment.label)}"></span>'
    )


@register.simple_tag
def replica_rows(neuron: NeuronRow, may_operate: bool) -> SafeString:
    """``may_operate``: whether the user may unload and reload."""
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
    model = f'<a id="replica-{replica.id}" href="{escape(replica.url)}">{escape(replica.model)}</a>'
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
    buttons = [_button("unload", replica, f"Unload {replica.model} from {neuron}", "Unload")]
    if replica.status == "ready":
        buttons.append(
            _button("sleep", replica, f"Put {replica.model} to sleep on {neuron}", "Sleep")
        )
    if replica.status == "asleep":
        buttons.append(_button("wake", replica, f"Wake {replica.model} on {neuron}", "Wake"))
    if replica.is_outdated:
        buttons.append(_button("reload", replica, f"Reload {replica.model} on {neuron}", "Reload"))
    return " ".join(buttons)


def _button(verb: str, replica: ReplicaRow, label: str, words: str) -> str:
    return (
        f'<button class="hx-button" id="{verb}-{replica.id}" name="do" '
        f'value="{verb} replica {replica.id}" aria-label="{escape(label)}">{words}</button>'
    )
