"""The manual and the shell's completion, made from the commands' own arguments."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from functools import cache

from release import VERSION

OURS = ("fleet", "metering")
BEFORE_DJANGO = {
    "serve": "run everything on this machine",
    "neuron": "run a neuron alone",
    "doctor": "check this host, with a remedy for each fault",
    "environment": "make the environment for a gateway or a neuron",
    "version": "the version; with --json the build",
}
HIDDEN = frozenset({"ensure_default_model", "gateway"})
OF_ALL = (
    *("--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback"),
    *("--no-color", "--force-color", "--skip-checks"),
)
"""Flags of every command, Django's own."""


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of our commands that Django runs, by command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
    import django
    from django.core.management import get_commands, load_command_class

    django.setup()
    return {
        name: load_command_class(app, name).create_parser("helexa", name)
        for name, app in sorted(get_commands().items())
        if app in OURS and name not in HIDDEN
    }


def manual_text() -> str:
    lines = [
        f'.TH HELEXA 1 "" "helexa {VERSION}" "helexa"',
        ".SH NAME",
        "helexa \\- one private AI endpoint from the machines you own",
        ".SH SYNOPSIS",
        ".B helexa",
        ".I COMMAND",
        "[options]",
        ".br",
        ".B helexa --neuron",
        ".I COMMAND",
        "[options]",
        ".SH DESCRIPTION",
        "Runs a command as the gateway's user with its settings, from /etc/cortex/cortex.env; with",
        ".B --neuron",
        "as the neuron's, from /etc/neuron/neuron.env.",
        ".SH COMMANDS",
    ]
    for name, words in BEFORE_DJANGO.items():
        lines += [".TP", f".B {name}", _roff(words)]
    for name, parser in parsers().items():
        lines += [".TP", f".B {name}", _roff(str(parser.description or ""))]
        for words, help_text in arguments_of(parser):
            lines += [".RS", ".TP", f".B {_roff(words)}", _roff(help_text), ".RE"]
    lines += [
        ".SH FILES",
        ".TP",
        "/etc/cortex/cortex.env, /etc/neuron/neuron.env, /etc/helexa-bench/helexa-bench.env",
        "Settings.",
        ".TP",
        "/var/lib/cortex, /var/lib/neuron, /var/lib/helexa-bench",
        "Data, and the environment that the first start made.",
        ".SH SEE ALSO",
        ".BR systemctl (1),",
        ".BR journalctl (1)",
    ]
    return "\n".join(lines) + "\n"


def completion_text() -> str:
    """Returns the completion script for bash."""
    cases = []
    for name, parser in parsers().items():
        words = [flag for flags, _ in arguments_of(parser) for flag in flags.split(", ")]
        cases.append(f'        {name}) words="{" ".join(sorted(set(words)))}" ;;')
    names = " ".join(sorted({*BEFORE_DJANGO, *parsers()}))
    return "\n".join(
        [
            "# bash completion of helexa",
            "_helexa() {",
            "    local words",
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f'        words="{names} --neuron"',
            "    else",
            '        case "${COMP_WORDS[1]}" in',
            *cases,
            '        *) words="" ;;',
            "        esac",
            "    fi",
            '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")',
            "}",
            "complete -o default -F _helexa helexa",
            "",
        ]
    )


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Flags and subcommands, with their help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield str(choice.dest), str(choice.help or "")
        elif action.option_strings and action.option_strings[-1] not in OF_ALL:
            yield ", ".join(action.option_strings), _help(action)


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default} if action.help else ""


def _roff(text: str) -> str:
    escaped = re.sub(r"\s+", " ", text).strip().replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
