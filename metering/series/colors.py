"""Which colour a line of a chart has: the same on every page and at every time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

PALETTE = (
    *("#7c3aed", "#d97706", "#059669", "#0284c7", "#db2777", "#65a30d"),
    *("#4f46e5", "#dc2626", "#0d9488", "#a16207", "#9333ea", "#475569"),
)
FIXED = {
    "answered": "#059669",
    "cancelled": "#64748b",
    "refused": "#d97706",
    "failed": "#dc2626",
    "p50": "#0284c7",
    "p95": "#7c3aed",
    "mean": "#0284c7",
    "most": "#7c3aed",
    "prompt": "#0d9488",
    "answer": "#7c3aed",
}


def colors_of(names: Sequence[str]) -> list[str]:
    """A name's colour follows from the name alone, unless another line of the chart has it: then
    the later one by the alphabet gets the next free one. No chart mixes fixed and other names."""
    found: dict[str, str] = {}
    for name in sorted(set(names) - FIXED.keys()):
        first = crc32(name.encode()) % len(PALETTE)
        order = [PALETTE[(first + step) % len(PALETTE)] for step in range(len(PALETTE))]
        found[name] = next((one for one in order if one not in found.values()), order[0])
    return [FIXED[name] if name in FIXED else found[name] for name in names]
