"""Checks a load's configs and headers, in a process of its own, before other models leave for it,
and weighs the layers of one that did not fit.

``inference.loading.file_check`` is the process. A check that gives no answer stops no load: the
engine reads the same files.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from inference.loading.file_check import FileCheckOrder, FileCheckResult, decode_result
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.order_process import messages_of, order_process
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import PackedCosts

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "inference.loading.file_check")
LIMIT_S = 30.0
"""Most files take a second; an architecture of which transformers decides takes several."""


class FileChecker:
    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._limit_s = limit_s
        self._clock = clock

    def check(
        self,
        spec: LoadSpec,
        weights: Sequence[Path],
        free_bytes: int,
        is_cancelled: Callable[[], bool],
    ) -> None:
        """``weights``: downloaded files. ``free_bytes``: on its device, for choosing a quant.
        Blocks for ``limit_s`` at most. Raises ``LoadRefusedError`` where the engine would refuse
        the files."""
        if not weights and not spec.source.startswith("path:"):
            return  # there are no files to read
        order = FileCheckOrder(
            spec=spec,
            weights=[str(path) for path in weights],
            free_memory_bytes=max(0, free_bytes),
        )
        result, problem = self._run(order, is_cancelled)
        if result is not None and result.failure is not None:
            raise LoadRefusedError(result.failure)
        if result is None and not is_cancelled():
            log.warning(
                "the files of %s are not checked before models leave for it: the check %s",
                spec.model,
                problem,
            )

    def costs(
        self,
        spec: LoadSpec,
        weights: Sequence[Path],
        free_bytes: int,
        is_cancelled: Callable[[], bool],
    ) -> PackedCosts | None:
        """What the model's layers take; arguments as for ``check``. Blocks for ``limit_s`` at
        most. ``None``: the files are not there, or do not show it."""
        if not weights and not spec.source.startswith("path:"):
            return None
        order = FileCheckOrder(
            spec=spec,
            weights=[str(path) for path in weights],
            free_memory_bytes=max(0, free_bytes),
            weighs=True,
        )
        result, problem = self._run(order, is_cancelled)
        if result is None or result.costs is None:
            why = problem if result is None or result.failure is None else result.failure.message
            log.info("what the layers of %s take is unknown: %s", spec.model, why)
            return None
        return result.costs

    def _run(
        self, order: FileCheckOrder, is_cancelled: Callable[[], bool]
    ) -> tuple[FileCheckResult | None, str]:
        """The result, or ``None`` and why there is none, in words."""
        deadline_s = self._clock() + self._limit_s
        result: FileCheckResult | None = None

        def is_late() -> bool:
            return self._clock() > deadline_s

        try:
            with order_process(
                self._command, order, lambda: is_cancelled() or is_late()
            ) as process:
                for message in messages_of(process, decode_result):
                    result = message
        except OSError as error:
            return None, f"could not be started: {error}"
        if is_late():
            return result, f"took longer than {self._limit_s:.0f} s"
        return result, f"ended with code {process.returncode}"


def check_nothing(
    spec: LoadSpec, weights: Sequence[Path], free_bytes: int, is_cancelled: Callable[[], bool]
) -> None:
    """Checks nothing. Engines that are not this build's read other files, and only they know
    which."""


def weigh_nothing(
    spec: LoadSpec, weights: Sequence[Path], free_bytes: int, is_cancelled: Callable[[], bool]
) -> PackedCosts | None:
    """Reads nothing, as ``check_nothing``."""
    return None
