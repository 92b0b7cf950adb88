"""Keeps the report of downloads within what Redis takes as one value and its readers read.

A cache of very many files is reported without the names of the files of its largest models, and one
of very many models without those that have not been used for longest. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from inference.protocol.downloads import CachedModel, CacheReport, encode_cache_report
from inference.redis_connections import MAX_VALUE_BYTES

NAMES_SHOWN = 3
_encode = msgspec.json.Encoder().encode


def bounded_report(
    report: CacheReport, *, max_bytes: int = MAX_VALUE_BYTES
) -> tuple[CacheReport, str]:
    """The report or the part of it that fits, and in words the rest; empty where all fits."""
    excess = len(encode_cache_report(report)) - max_bytes
    if excess <= 0:
        return report, ""
    cached = list(report.cached)
    unnamed: list[CachedModel] = []
    for index in sorted(range(len(cached)), key=lambda index: -_num_bytes(cached[index])):
        if excess <= 0:
            break
        unnamed.append(cached[index])
        cached[index] = msgspec.structs.replace(cached[index], files=[], missing=[])
        excess -= _num_bytes(unnamed[-1]) - _num_bytes(cached[index])
    left_out: list[CachedModel] = []
    by_use = sorted(cached, key=lambda model: model.last_used_unix_s or 0.0)
    while excess > 0 and by_use:
        left_out.append(by_use.pop(0))
        excess -= _num_bytes(left_out[-1])
    gone = {(model.source, model.revision) for model in left_out}
    kept = [model for model in cached if (model.source, model.revision) not in gone]
    words = f"it has no file names of {_names(unnamed)}"
    if left_out:
        words += f", and nothing of {_names(left_out)}"
    return msgspec.structs.replace(report, cached=kept), words


def _num_bytes(model: CachedModel) -> int:
    return len(_encode(model))


def _names(models: Iterable[CachedModel]) -> str:
    names = [model.source for model in models]
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
