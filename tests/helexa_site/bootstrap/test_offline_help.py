"""Help before the environment exists, and the page of the docs that it prints from."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands

from helexa_site.bootstrap import commands
from helexa_site.bootstrap.offline_help import (
    BROUGHT_COMMANDS,
    missing_subcommand,
    offline_help,
    unknown_word,
)
from helexa_site.exit_codes import ExitCode
from helexa_site.reference import commands_page


def test_the_page_of_commands_is_current() -> None:
    """Write it again with ``python -m helexa_site.reference``."""
    assert commands_page.PAGE.read_text() == commands_page.page()


def test_every_command_of_ours_has_its_help() -> None:
    for name, parser in commands_page.parsers():
        for words, _ in commands_page.leaves(name, parser):
            assert offline_help([*words.split(), "--help"]).startswith(f"usage: manage.py {words}")


@pytest.mark.parametrize(
    ("words", "shown", "not_shown"),
    [
        ("models --help", "usage: manage.py models change MODEL", "manage.py keys"),
        ("models change -h", "--set SETTING=VALUE", "manage.py models add"),
        ("help keys revoke", "usage: manage.py keys revoke PREFIX", "keys list"),
        ("shell --help", "commands: accounts, aliases", "--json"),
        ("help", "usage: manage.py COMMAND", "--json"),
    ],
)
def test_the_help_of_a_command(words: str, shown: str, not_shown: str) -> None:
    text = offline_help(words.split())
    assert shown in text
    assert not_shown not in text


def test_without_the_docs_there_is_a_usage_line(tmp_path: Path) -> None:
    assert "usage: manage.py COMMAND" in offline_help(["models", "--help"], tmp_path / "none.md")
    assert unknown_word(["nosuch"], tmp_path / "none.md") is None


@pytest.mark.parametrize("words", [["models", "--help"], ["--help"], ["test", "--help"]])
def test_help_builds_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(_requirements: str) -> None:
        raise AssertionError("it builds the environment")

    monkeypatch.setattr(commands, "ensure_environment", build)
    monkeypatch.setattr(commands.importlib.util, "find_spec", lambda _name: None)
    assert commands.run(words) == 0
    assert "usage: manage.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nosuch", "there is no command nosuch; manage.py help lists them"),
        ("model list", "there is no command model; did you mean models?"),
        ("models cahnge tiny", "there is no command models cahnge; did you mean models change?"),
        ("jobs zzz", "there is no command jobs zzz; known are jobs cancel, jobs list, jobs show"),
    ],
)
@pytest.mark.parametrize("is_installed", [True, False])
def test_an_unknown_word_builds_nothing(
    words: str,
    expected: str,
    is_installed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "ensure_environment", lambda name: pytest.fail(name))
    if not is_installed:
        monkeypatch.setattr(commands.importlib.util, "find_spec", lambda _name: None)
    assert commands.run(words.split()) == ExitCode.USAGE
    assert capsys.readouterr().err == f"helexa: {expected}\n"


def test_a_command_without_its_subcommand_builds_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "ensure_environment", lambda name: pytest.fail(name))
    monkeypatch.setattr(commands.importlib.util, "find_spec", lambda _name: None)
    assert commands.run(["jobs"]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "helexa: jobs needs a subcommand; known are cancel, list, show\n"
    )
    assert missing_subcommand(["status"]) is None and missing_subcommand(["migrate"]) is None


def test_every_command_that_there_is_is_known() -> None:
    unknown = {name: unknown_word([name]) for name in get_commands()}
    assert {name for name, sentence in unknown.items() if sentence} == set()
    assert get_commands().keys() >= BROUGHT_COMMANDS
    words = (
        words.split()
        for name, parser in commands_page.parsers()
        for words, _ in commands_page.leaves(name, parser)
    )
    assert [unknown_word(one) for one in words if unknown_word(one)] == []
    assert unknown_word(["models", "--json"]) is None
    assert unknown_word(["--pythonpath", "x"]) is None


def test_every_word_that_a_command_takes_is_known() -> None:
    """The earlier names of subcommands are known too: ``accounts create``."""
    words = [
        [name, word]
        for name, parser in commands_page.parsers()
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for word in action.choices
    ]
    others = [["accounts", "create"], ["keys", "create"], ["keys", "remove"]]
    assert [one for one in others if one not in words] == []
    assert [one for one in words if unknown_word(one)] == []
    assert offline_help(["accounts", "create"]) == offline_help(["accounts", "add"])


def test_a_python_without_packages_has_it() -> None:
    script = "import sys; sys.path.insert(0, sys.argv[1]); " + (
        "from helexa_site.bootstrap.offline_help import offline_help; "
        "print(offline_help(['keys', 'show', '--help']))"
    )
    root = str(commands_page.REPOSITORY_DIR)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, root],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("usage: manage.py keys show PREFIX"), done.stderr
