"""Help for commands, and refusals of unknown ones, before anything is installed.

Both are read from docs/operating/commands.md, because Django's commands import what the environment
brings. Standard library only.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from helexa_site.program import REPOSITORY_DIR, program

PAGE = REPOSITORY_DIR / "docs" / "operating" / "commands.md"
HELP_FLAGS = {"--help", "-h"}
BROUGHT_COMMANDS = frozenset(
    {
        "changepassword",
        "check",
        "clearsessions",
        "collectstatic",
        "compilemessages",
        "createcachetable",
        "createsuperuser",
        "dbshell",
        "diffsettings",
        "dumpdata",
        "findstatic",
        "flush",
        "generateschema",
        "inspectdb",
        "loaddata",
        "makemessages",
        "makemigrations",
        "migrate",
        "optimizemigration",
        "remove_stale_contenttypes",
        "runserver",
        "runworker",
        "sendtestemail",
        "shell",
        "showmigrations",
        "spectacular",
        "sqlflush",
        "sqlmigrate",
        "sqlsequencereset",
        "squashmigrations",
        "startapp",
        "startproject",
        "testserver",
    }
)
"""The commands of Django and of packages, which the page leaves out."""
OWN_COMMANDS = frozenset({"serve", "neuron", "test", "doctor", "environment", "version"})
"""Those that run before Django does."""
BLOCK = re.compile(
    r"^### (?P<words>[^\n]+)\n\n<!-- not run: a listing -->\n```text\n(?P<text>.*?)```$",
    re.MULTILINE | re.DOTALL,
)
OTHER_WORDS = re.compile(r"^  also: (?P<words>.+)$", re.MULTILINE)


def asks_for_help(arguments: list[str]) -> bool:
    return not arguments or arguments[0] == "help" or bool(HELP_FLAGS & {*arguments})


def offline_help(arguments: list[str], page: Path = PAGE) -> str:
    """The help of the command in ``arguments``; of all commands where it names none."""
    words = [word for word in arguments if word not in HELP_FLAGS]
    words = words[1:] if words[:1] == ["help"] else words
    blocks = _blocks(page)
    found = _of_words(words, blocks)
    if not words or not found:
        names = ", ".join(dict.fromkeys(name.split()[0] for name in blocks))
        more = f"commands: {names}\n\n" if names else ""
        return (
            f"usage: {program()} COMMAND [--help]\n\n{more}Django's own commands are listed once "
            f"the environment is there: {program()} environment gateway\n"
        )
    return "\n".join(found)


def unknown_word(arguments: list[str], page: Path = PAGE) -> str | None:
    """A sentence about the first of ``arguments`` that is no command, or no subcommand of the one
    before it. None where both are known, and where the docs are not installed."""
    blocks = _blocks(page)
    if not blocks or arguments[0].startswith("-"):
        return None
    name, *rest = arguments
    commands = {words.split()[0] for words in blocks} | BROUGHT_COMMANDS | OWN_COMMANDS
    if name not in commands:
        return _no_command(name, commands, f"{program()} help lists them")
    subcommands = _subcommands(name, blocks)
    if not subcommands or not rest or rest[0].startswith("-") or rest[0] in subcommands:
        return None
    return _no_command(f"{name} {rest[0]}", {f"{name} {word}" for word in subcommands})


def _subcommands(name: str, blocks: dict[str, str]) -> set[str]:
    """Each by all its words."""
    found = set()
    for words, text in blocks.items():
        command, *rest = words.split()
        if command == name and rest:
            found.add(rest[0])
            found.update(word for _, word in _other_names(words, text))
    return found


def missing_subcommand(arguments: list[str], page: Path = PAGE) -> str | None:
    """A sentence about a command that is nothing without a subcommand, and has none."""
    blocks = [name.split() for name in _blocks(page)]
    known = sorted({words[1] for words in blocks if words[0] == arguments[0] and len(words) > 1})
    if len(arguments) > 1 or not known or arguments in blocks:
        return None
    return f"{arguments[0]} needs a subcommand; known are {', '.join(known)}"


def _no_command(words: str, known: set[str], otherwise: str = "") -> str:
    near = difflib.get_close_matches(words, sorted(known), n=1)
    listed = otherwise or f"known are {', '.join(sorted(known))}"
    hint = f"did you mean {near[0]}?" if near else listed
    return f"there is no command {words}; {hint}"


def _of_words(words: list[str], blocks: dict[str, str]) -> list[str]:
    """The block of the subcommand, or those of all the command's."""
    for length in range(len(words), 0, -1):
        wanted = words[:length]
        found = [
            text
            for name, text in blocks.items()
            if name.split()[:length] == wanted or wanted in _other_names(name, text)
        ]
        if found:
            return found
    return []


def _other_names(name: str, text: str) -> list[list[str]]:
    other = OTHER_WORDS.search(text)
    return [[name.split()[0], word] for word in other["words"].split(", ")] if other else []


def _blocks(page: Path) -> dict[str, str]:
    """Empty where the docs are not installed."""
    if not page.is_file():
        return {}
    blocks = {match["words"]: match["text"] for match in BLOCK.finditer(page.read_text())}
    return {words: text.replace("manage.py", program()) for words, text in blocks.items()}
