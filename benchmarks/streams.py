"""Figures of a decode from times of arrival: for subjects that report when each token came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def tokens_per_s_together(streams: Iterable[Sequence[float]]) -> float:
    """Aggregate output tok/s while every stream was decoding.

    ``streams`` has, for each sequence, the clock reading in seconds of each of its tokens, in
    order. Counted are the tokens after the last stream's first and up to the first stream's last:
    no prompt is in that time, and the batch is full throughout.

        stream a   |--x--x--x--x--x
        stream b   |--------x--x--x--x--x
        counted             (        ]
    """
    arrivals = list(streams)
    started = max(times[0] for times in arrivals)
    ended = min(times[-1] for times in arrivals)
    if ended <= started:
        raise ValueError("the streams were never decoding together")
    num_tokens = sum(started < time <= ended for times in arrivals for time in times)
    return num_tokens / (ended - started)
