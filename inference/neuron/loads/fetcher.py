"""Downloads for a neuron: one process each, followed until it ends or is cancelled.

``inference.loading.sources.fetch`` is the process. Called from the threads of replicas and of
pulls.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from inference.loading.progress import OnProgress
from inference.loading.sources.cached import cached_directory, delete_cached
from inference.loading.sources.fetch import (
    Fetched,
    FetchFailed,
    Fetching,
    FetchOrder,
    decode_message,
)
from inference.loading.sources.hub_sources import is_downloaded
from inference.loading.sources.sources import fetch_files, is_on_disk
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.order_process import messages_of, order_process
from inference.neuron.loads.watch import LoadWatch
from inference.protocol.load import LoadSpec, draft_spec
from inference.protocol.load_errors import LoadError
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "inference.loading.sources.fetch")


class Fetcher:
    def __init__(
        self,
        cache_dir: Path,
        free_memory_bytes: Callable[[], int],
        *,
        stall_limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``free_memory_bytes``: on the device that a load would go to, for choosing a quant.
        ``stall_limit_s``: how long a download may make no progress; ``None``: no limit."""
        self.cache_dir = cache_dir
        self._stall_limit_s = stall_limit_s
        self._clock = clock
        self._free_memory_bytes = free_memory_bytes

    def fetch(
        self, spec: LoadSpec, report: OnProgress, is_cancelled: Callable[[], bool]
    ) -> Fetched | None:
        """Downloads the spec's files, with its draft model where it has one. ``None``: cancelled,
        or no source that is downloaded. Raises ``LoadRefusedError``; the downloaded files of a load
        that can never succeed are deleted then."""
        own = self._fetch(spec, report, is_cancelled)
        drafting = draft_spec(spec)
        if drafting is None or is_cancelled():
            return own
        try:
            return _together(own, self._fetch(drafting, report, is_cancelled))
        except LoadRefusedError as refused:
            if own is not None and refused.failure.is_permanent:
                self.remove(own.new_files)
            raise

    def _fetch(
        self, spec: LoadSpec, report: OnProgress, is_cancelled: Callable[[], bool]
    ) -> Fetched | None:
        if not is_downloaded(spec.source):
            return None
        try:
            if is_on_disk(spec, self.cache_dir):
                return self._found(spec)
        except LoadError as error:
            raise LoadRefusedError(error.failure) from None
        order = FetchOrder(
            spec=spec,
            cache_dir=str(self.cache_dir),
            free_memory_bytes=self._free_memory_bytes(),
        )
        last: Fetched | FetchFailed | None = None
        watch = LoadWatch()
        watch.progressed(LoadProgress(stage=LoadStage.DOWNLOADING, detail=spec.source))
        stalls: list[LoadFailure] = []
        with order_process(
            COMMAND, order, lambda: is_cancelled() or self._has_stalled(watch, stalls)
        ) as process:
            for message in messages_of(process, decode_message):
                if isinstance(message, Fetching):
                    watch.progressed(message.progress)
                    report(message.progress)
                else:
                    last = message
        if is_cancelled():
            return None
        if stalls:
            raise LoadRefusedError(stalls[0])
        match last:
            case Fetched():
                return last
            case FetchFailed(failure=failure, new_files=new_files):
                if failure.is_permanent or failure.code == "disk_full":
                    self.remove(new_files)
                raise LoadRefusedError(failure)
        message_text = f"the download of {spec.source} ended with code {process.returncode}"
        raise LoadRefusedError(LoadFailure(code="download_failed", message=message_text))

    def _has_stalled(self, watch: LoadWatch, stalls: list[LoadFailure]) -> bool:
        """Why is added to ``stalls``."""
        stalled_s = watch.look(self._clock())
        if self._stall_limit_s is None or stalled_s <= self._stall_limit_s:
            return False
        stalls.append(watch.failure(stalled_s))
        log.error("%s; the download is ended", stalls[-1].message)
        return True

    def _found(self, spec: LoadSpec) -> Fetched:
        """Raises ``LoadError``."""
        free_bytes = self._free_memory_bytes()
        files = fetch_files(spec, self.cache_dir, free_bytes, lambda _: None)
        return Fetched(
            weights=[str(path) for path in files.all_weights],
            weight_bytes=sum(path.stat().st_size for path in files.all_weights),
        )

    def remove(self, new_files: dict[str, list[str]], used: Collection[Path] = ()) -> None:
        """Delete files that a failed load downloaded. A package or revision stays whole where a
        file of ``used`` lies in it."""
        for key, names in new_files.items():
            source, _, revision = key.rpartition("@")
            directory = cached_directory(self.cache_dir, source, revision)
            if any(path.is_relative_to(directory) for path in used):
                continue
            try:
                freed = delete_cached(self.cache_dir, source, revision, names)
            except (LoadError, OSError) as error:
                log.warning("%s could not be removed: %s", key, error)
            else:
                log.info("removed what was downloaded of %s: %d bytes", key, freed)


def _together(own: Fetched | None, drafting: Fetched | None) -> Fetched | None:
    if own is None or drafting is None:
        return own or drafting
    new_files = dict(own.new_files)
    for key, names in drafting.new_files.items():
        new_files[key] = [*new_files.get(key, []), *names]
    return Fetched(
        weights=[*own.weights, *drafting.weights],
        weight_bytes=own.weight_bytes + drafting.weight_bytes,
        new_files=new_files,
    )
