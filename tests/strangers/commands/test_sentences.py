"""Commands report a newcomer's mistakes in a sentence and an exit code: every command of ours, as
its own parser describes it.

``python -m tests.strangers.commands.test_sentences`` runs each case in a fork of one process that
has imported Django, and prints a line of JSON for each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.live.serving import REPOSITORY_DIR, serve_environment

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]


def problems_of(case: dict[str, Any]) -> str | None:
    words, code, printed = " ".join(case["words"]), case["code"], case["output"] + case["errors"]
    if "Traceback (most recent call last)" in printed:
        return f"{words}: a traceback: {printed[-600:]}"
    if code < 0:
        return f"{words}: it was ended by signal {-code}"
    if "--no-such-flag" in case["words"] and (code == 0 or "--no-such-flag" not in printed):
        return f"{words}: the flag is not refused by name: {code}, {printed[-200:]}"
    if code != 0 and not case["errors"].strip() and case["words"][0] not in ("deploy_gate",):
        return f"{words}: it failed without a word on standard error"
    return None


def test_every_command_reports_a_mistake_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.strangers.commands.test_sentences"],
        env=serve_environment()
        | {
            "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
            "HELEXA_DATA_DIR": str(tmp_path / "nothing"),
            "PYTHONPATH": str(REPOSITORY_DIR),
        },
        cwd=REPOSITORY_DIR,
        stdout=subprocess.PIPE,
        text=True,
        timeout=800,
        check=True,
    )
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) > 100
    assert [problem for case in cases if (problem := problems_of(case))] == []


CASE_TIMEOUT_S = 120
OURS = ("fleet", "metering", "metering.bench", "helexa_site")
LONG_RUNNING = frozenset({("gateway",), ("runserver",), ("bench", "run"), ("tp_smoke",)})
"""They keep running on valid options: these are only run with refused ones."""
LIMITED = {("deploy_gate",): ["--timeout", "1"], ("status",): []}
"""What keeps a command from waiting for a server that may come back."""
NO_SUCH_FLAG = "--no-such-flag"
AWAY = "http://127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Entry:
    words: tuple[str, ...]
    flags: frozenset[str]
    values: tuple[str, ...]
    """The values for what it needs, none of which exists."""


def entries() -> Iterator[Entry]:
    from django.core.management import get_commands, load_command_class

    for name, app in sorted(get_commands().items()):
        if app in OURS and isinstance(app, str):
            yield from _entries((name,), load_command_class(app, name).create_parser("", name))


def _entries(words: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Entry]:
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for action in inner:
        for name, sub in action.choices.items():
            yield from _entries((*words, name), sub)
    if not inner:
        flags = frozenset(flag for one in parser._actions for flag in one.option_strings)
        yield Entry(words, flags, tuple(_values(parser)))


def _values(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        value = str(next(iter(action.choices))) if action.choices else "1"
        if action.option_strings and action.required:
            yield from (action.option_strings[0], value)
        elif not action.option_strings and action.nargs not in ("?", "*"):
            yield value if action.choices or action.type is not None else "no-such-thing"


def cases() -> Iterator[list[str]]:
    """Without a database, and with a server that is away."""
    for entry in entries():
        full = [*entry.words, *entry.values, *LIMITED.get(entry.words, [])]
        yield [*full, NO_SUCH_FLAG]
        if entry.values:
            yield list(entry.words)
        if entry.words not in LONG_RUNNING:
            yield full
        if "--url" in entry.flags:
            yield [*full, "--url", "nonsense"]
            yield [*full, "--url", AWAY]


def run_case(words: list[str]) -> dict[str, Any]:
    """``code`` is negative for a signal, SIGALRM's where it took too long."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            _become(words, output.fileno(), errors.fileno())
        _, status = os.waitpid(child, 0)
        output.seek(0)
        errors.seek(0)
        return {
            "words": words,
            "code": os.waitstatus_to_exitcode(status),
            "output": output.read(),
            "errors": errors.read(),
        }


def _become(words: list[str], output: int, errors: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    signal.alarm(CASE_TIMEOUT_S)
    from helexa_site.bootstrap.commands import run

    sys.argv = ["manage.py", *words]
    code: Any = 1
    try:
        code = run(words)
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001 - this is what the cases look for
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)


def main() -> None:
    import django

    django.setup()
    for words in cases():
        print(json.dumps(run_case(words)), flush=True)


if __name__ == "__main__":
    main()
