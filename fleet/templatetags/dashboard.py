"""Sizes and counts in words; and the board's models, devices and replicas.

Loops of a template over them take long, and the board is asked for every two seconds: here they are
plain text, and everything in it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from django import template
from django.utils.safestring import SafeString, mark_safe

from fleet.dashboard.rows import (
    DeviceRow,
    ModelRow,
    NeuronRow,
    ProgressRow,
    ReplicaRow,
    SegmentRow,
)
from fleet.dashboard.words import asks_first, count_words
from fleet.management.sizes import size_text

GAP = '<span class="hx-gap"></span>'
"""Placeholder of a button that is not offered."""

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
def model_rows(models: Iterable[ModelRow], may_operate: bool) -> SafeString:
    """``may_operate``: whether the user may load and unload."""
    return mark_safe("".join(_model(one, may_operate) for one in models))


def _model(model: ModelRow, may_operate: bool) -> str:
    labels = [_label(model.tone, model.status)]
    if model.is_outdated:
        labels.append(_label("warning", "outdated"))
    if model.is_kept_loaded:
        labels.append(_label("quiet", "kept loaded"))
    job = "" if model.progress is None else _job(model.progress, may_operate)
    more = f" +{model.num_more_jobs}" if model.num_more_jobs else ""
    buttons = "".join(_model_buttons(model)) if may_operate else ""
    name = escape(model.name)
    return (
        f'<tr><th scope="row"><a id="open-model-{name}" href="{escape(model.url)}">{name}</a></th>'
        f"<td>{' '.join(labels)}</td><td>{escape(model.replicas)}</td><td>{job}{more}</td>"
        f'<td class="hx-actions">{buttons}</td></tr>'
    )


def _model_buttons(model: ModelRow) -> Iterator[str]:
    """Each has a place of its own: none is pressed in another's stead."""
    name = escape(model.name)
    offered = {"reload": model.may_reload, "load": model.may_load, "unload": model.may_unload}
    for verb, is_offered in offered.items():
        words = f"{verb.capitalize()} {name}"
        yield _command(verb, "model", name, words) if is_offered else GAP


@register.simple_tag
def replica_rows(neuron: NeuronRow, may_operate: bool, *, by_neuron: bool = False) -> SafeString:
    """``may_operate``: whether the user may unload and reload. ``by_neuron``: rows begin with the
    neuron, as the model is known."""
    rows = (_row(one, neuron, may_operate, by_neuron) for one in neuron.replicas)
    return mark_safe("".join(rows))


def _row(replica: ReplicaRow, neuron: NeuronRow, may_operate: bool, by_neuron: bool) -> str:
    devices = escape(replica.devices) or "its page"
    cells = (
        _status(replica, may_operate),
        f'<a id="replica-{replica.id}" href="{escape(replica.url)}">{devices}</a>',
        replica.running,
        replica.waiting,
        _kv(replica.kv_percent),
        escape(replica.tokens_per_s),
    )
    url, name = replica.model_url, replica.model
    if by_neuron:
        url, name = neuron.url, neuron.name
    head = f'<a id="open-replica-{replica.id}" href="{escape(url)}">{escape(name)}</a>'
    buttons = "".join(_buttons(replica, neuron.name)) if may_operate else ""
    return (
        f'<tr><th scope="row">{head}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}'
        f'<td class="hx-actions">{buttons}</td></tr>'
    )


def _status(replica: ReplicaRow, may_operate: bool) -> str:
    parts = [_label(replica.tone, replica.status)]
    if replica.is_outdated:
        parts.append(_label("warning", "outdated"))
    is_active = replica.progress is not None and replica.progress.tone == "info"
    if replica.remark and not is_active:
        remark = escape(replica.remark)
        parts.append(f'<span class="hx-bad" title="{remark}">{remark}</span>')
    elif replica.progress is not None:
        parts.append(_job(replica.progress, may_operate))
    return " ".join(parts)


def _job(progress: ProgressRow, may_operate: bool) -> str:
    """One line, whose title has all of its words where they do not fit."""
    text = escape(progress.text)
    parts = [f'<span class="hx-{escape(progress.tone)}" title="{text}">{text}</span>']
    if progress.percent is not None and progress.tone == "info":
        percent = progress.percent
        parts.append(
            f'<span class="hx-bar" role="progressbar" aria-valuenow="{percent}" aria-valuemin="0" '
            f'aria-valuemax="100" aria-label="{text}"><span style="width: {percent}%"></span>'
            "</span>"
        )
    if progress.job_id and may_operate:
        job = escape(progress.job_id)
        cancel = _button("cancel", "job", job, f"cancel-{job}", f"Cancel {text}")
        parts.insert(0, cancel)
    return "".join(parts)


def _label(tone: str, words: str) -> str:
    return f'<span class="hx-label hx-{escape(tone)}">{escape(words)}</span>'


def _kv(percent: int | None) -> str:
    if percent is None:
        return ""
    return (
        f'<meter min="0" max="100" value="{percent}" aria-label="KV blocks in use">{percent} %'
        f"</meter> {percent} %"
    )


def _buttons(replica: ReplicaRow, neuron: str) -> Iterator[str]:
    pk, model, host = f"{replica.id}", escape(replica.model), escape(neuron)
    if replica.is_outdated and not replica.lies_on_hosts:
        yield _command("reload", "replica", pk, f"Reload {model} on {host}")
    if replica.status == "asleep":
        yield _command("wake", "replica", pk, f"Wake {model} on {host}")
    elif replica.status == "ready" and not (replica.is_kept_loaded or replica.lies_on_hosts):
        yield _command("sleep", "replica", pk, f"Put {model} to sleep on {host}")
    else:
        yield GAP
    if replica.is_kept_loaded:
        yield GAP
    else:
        yield _command("unload", "replica", pk, f"Unload {model} from {host}")


def _command(verb: str, noun: str, about: str, label: str) -> str:
    """``about`` and ``label`` are escaped. What ends something asks first."""
    ask = f' data-ask="{label}?"' if asks_first(verb) else ""
    return _button(verb, noun, about, f"{verb}-{about}", label, ask)


def _button(verb: str, noun: str, about: str, html_id: str, label: str, ask: str = "") -> str:
    return (
        f'<button class="hx-button" id="{html_id}" name="do" value="{verb} {noun} {about}" '
        f'aria-label="{label}"{ask}>{verb.capitalize()}</button>'
    )
