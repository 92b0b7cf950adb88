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

from tests.live.serving import WAIT_TIMEOUT_S, Program, serve_environment
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

    def text_of(self, block: Block | str) -> str:
        """A block or a command as this reader types it."""
        text = block if isinstance(block, str) else block.text
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
    def running(self, text: str, name: str, **environment: str) -> Iterator[Program]:
        """A command that runs until SIGTERM, upon which it has to end with code 0. The last of the
        commands that ``&&`` joins is the process."""
        before, joint, last = text.rpartition(" && ")
        command = _command(f"{before}{joint}exec {last}", "sh")
        program = Program(name, command, self._environment | environment, self.folder, self.folder)
        try:
            yield program
            program.process.terminate()
            code = program.process.wait(WAIT_TIMEOUT_S)
            assert code == 0, f"{text} ended with {code}:\n{program.log_tail()}"
            assert "Traceback" not in program.output, program.output
        finally:
            program.end()


def _command(text: str, language: str) -> list[str]:
    if language == "python":
        return [sys.executable, "-c", text]
    return ["bash", "-euo", "pipefail", "-c", text]
