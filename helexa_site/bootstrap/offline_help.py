"""Help for commands before anything is installed, from docs/operating/commands.md.

Django's commands import what the environment brings. Standard library only.
"""

from __future__ import annotations

import re
from pathlib import Path

from helexa_site.program import REPOSITORY_DIR, program

PAGE = REPOSITORY_DIR / "docs" / "operating" / "commands.md"
HELP_FLAGS = {"--help", "-h"}
BLOCK = re.compile(
    r"^### (?P<words>[^\n]+)\n\n<!-- not run: a listing -->\n```text\n(?P<text>.*?)```$",
    re.MULTILINE | re.DOTALL,
)


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


def _of_words(words: list[str], blocks: dict[str, str]) -> list[str]:
    """The block of the subcommand, or those of all the command's."""
    for length in range(len(words), 0, -1):
        wanted = words[:length]
        found = [text for name, text in blocks.items() if name.split()[:length] == wanted]
        if found:
            return found
    return []


def _blocks(page: Path) -> dict[str, str]:
    """Empty where the docs are not installed."""
    if not page.is_file():
        return {}
    blocks = {match["words"]: match["text"] for match in BLOCK.finditer(page.read_text())}
    return {words: text.replace("manage.py", program()) for words, text in blocks.items()}
