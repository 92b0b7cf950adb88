"""A reader who pastes the documentation's blocks into a shell, in what looks like a checkout.

What a reader puts in for their own (an address, a name, a path) is put in here, by ``rewrites``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.live.serving import WAIT_TIMEOUT_S, serve_environment, wait_until
from tests.strangers.docs.blocks import REPOSITORY_DIR, Block, all_blocks

BLOCK_TIMEOUT_S = 240.0
OUTPUT_TAIL_CHARACTERS = 3000


def blocks_for(scenario: str, page: str = "") -> list[Block]:
    """Returns the blocks in the order of the pages. ``page``: of that one alone."""
    return [one for one in all_blocks() if one.scenario == scenario and page in (one.page, "")]


def linked_checkout(folder: Path) -> Path:
    """``folder`` with a link to each file and folder of this checkout but those that runs write."""
    folder.mkdir()
    for path in REPOSITORY_DIR.iterdir():
        if path.name not in (".git", ".venv", "var"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


class Newcomer:
    """``environment`` comes on top of this process's, without what would name another server."""

    def __init__(
        self, folder: Path, *, rewrites: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self._rewrites = rewrites
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = serve_environment() | {"PATH": programs} | dict(environment)

    def text_of(self, block: Block) -> str:
        return self.text_of_command(block.text)

    def text_of_command(self, text: str) -> str:
        for documented, actual in self._rewrites.items():
            text = text.replace(documented, actual)
        return text

    def paste(self, block: Block, *, exit_codes: Sequence[int] = (0,)) -> str:
        """What it prints. Every command in a block of shell has to succeed."""
        return self.run(self.text_of(block), block.language, exit_codes=exit_codes)

    def run(self, text: str, language: str = "sh", *, exit_codes: Sequence[int] = (0,)) -> str:
        done = subprocess.run(
            _command(text, language),
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )
        report = f"{text}\n--- exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode in exit_codes, report[-OUTPUT_TAIL_CHARACTERS:]
        assert "Traceback" not in done.stderr, report[-OUTPUT_TAIL_CHARACTERS:]
        return done.stdout

    @contextmanager
    def running(self, text: str, name: str, **environment: str) -> Iterator[Running]:
        """A command that runs until SIGTERM, upon which it has to end with code 0."""
        running = Running(self, text, name, environment)
        try:
            yield running
            running.stop()
        finally:
            running.end()

    def start(
        self, text: str, log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """The last of the commands that ``&&`` joins is the process."""
        before, joint, last = text.rpartition(" && ")
        with log.open("wb") as file:
            return subprocess.Popen(
                _command(f"{before}{joint}exec {last}", "sh"),
                cwd=self.folder,
                env=self._environment | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )


class Running:
    def __init__(
        self, newcomer: Newcomer, text: str, name: str, environment: Mapping[str, str]
    ) -> None:
        self._log = newcomer.folder / f"{name}.log"
        self._text = text
        self._process = newcomer.start(text, self._log, environment)

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, words: str) -> str:

        def line() -> str | None:
            assert self._process.poll() is None, f"{self._text} ended:\n{self.output}"
            return next((line for line in self.output.splitlines() if words in line), None)

        try:
            return wait_until(line, f"{self._text} prints {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def stop(self) -> None:
        self._process.terminate()
        code = self._process.wait(WAIT_TIMEOUT_S)
        assert code == 0, f"{self._text} ended with {code}:\n{self.output}"
        assert "Traceback" not in self.output, self.output

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(WAIT_TIMEOUT_S)


def _command(text: str, language: str) -> list[str]:
    if language == "python":
        return [sys.executable, "-c", text]
    return ["bash", "-euo", "pipefail", "-c", text]
