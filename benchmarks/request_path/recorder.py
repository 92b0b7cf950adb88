"""Records which functions of this repository a request's threads call. Knows no request."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fleet", "helexa_site", "inference", "metering")

Files = dict[str, list[str]]
"""Maps each file to its functions, both in the order of their first calls."""


class Recorder:
    """Records the first call of each function while ``files`` is set, by the process whose work the
    calling thread does. ``process`` names it; ``None``: the thread works for no request."""

    def __init__(self, process: Callable[[], str | None]) -> None:
        self.files: dict[str, Files] | None = None
        self._process = process

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Records calls in this thread and in those that begin meanwhile."""
        threading.setprofile(self.called)
        sys.setprofile(self.called)
        try:
            yield
        finally:
            threading.setprofile(None)
            sys.setprofile(None)

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or self.files is None:
            return
        code = frame.f_code
        file = file_of(code.co_filename)
        if file is None or (process := self._process()) is None:
            return
        functions = self.files.setdefault(process, {}).setdefault(file, [])
        if code.co_qualname not in functions:
            functions.append(code.co_qualname)


class EngineRecorder(Recorder):
    """The recorder in an engine's process, where a chat begins when its frame has come from the
    neuron. Writes all chats so far to ``file`` with each frame; the last frame ends the process at
    once."""

    def __init__(self, file: Path) -> None:
        super().__init__(lambda: "engine")
        self.chats: list[Files] = []
        self._file = file

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "return" and code.co_qualname == "Channel.receive":
            file = file_of(code.co_filename)
            assert file is not None
            self._write()
            self.chats.append({file: [code.co_qualname]})
            self.files = {"engine": self.chats[-1]}
        super().called(frame, event, argument)

    def _write(self) -> None:
        """Replaces the file by a rename: it is read after the process was killed, at any time."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(self.chats))
        partial.replace(self._file)


def file_of(name: str) -> str | None:
    """Returns the path in this repository; ``None`` for a file that is in none of its packages."""
    if not name.startswith(f"{ROOT}{os.sep}"):
        return None
    path = Path(name).relative_to(ROOT)
    return path.as_posix() if path.parts[0] in PACKAGES else None


def on_each(chats: Sequence[Files]) -> Files:
    """The files and functions that every chat passed, in the last one's order."""
    return {
        file: [name for name in names if all(name in chat.get(file, ()) for chat in chats)]
        for file, names in chats[-1].items()
        if all(file in chat for chat in chats)
    }
