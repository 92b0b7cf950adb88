"""``manage.py upstreams``. Keys come from standard input or a variable of the environment: others
see command lines, and histories keep them."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from dataclasses import replace

from django.core.management.base import CommandError

from fleet.management import verbs
from fleet.management.backend import ensure_gateways_could_check
from fleet.nouns import UPSTREAMS, Noun
from fleet.upstream_http import PRICES

KEY = "key"
FLAG = "leaves_network"
LISTED = verbs.cells("name", "url", "dialect", "has_key", "leaves_network")
WORDS = {True: "yes", False: "no", None: "not tested"}
PROBES: verbs.Columns = {
    "": lambda probe: probe["what"],
    "works": lambda probe: WORDS[probe["works"]],
    "detail": lambda probe: probe["detail"],
}


def without(*names: str) -> Noun:
    return replace(
        UPSTREAMS, fields=tuple(one for one in UPSTREAMS.fields if one.name not in names)
    )


def add_key_arguments(parser: ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--key", dest="upstream_key", choices=("-",), help="on standard input")
    source.add_argument(
        "--key-env", metavar="VAR", help="the variable of this command's environment that holds it"
    )
    parser.set_defaults(key=None)  # that of the server is in HELEXA_API_KEY


def add_new_arguments(parser: ArgumentParser) -> None:
    add_key_arguments(parser)
    parser.add_argument(
        "--leaves-network", action="store_true", help="its requests leave your network"
    )


def key_of(run: verbs.Run) -> verbs.Row:
    """Raises ``CommandError``."""
    if run.options["upstream_key"] is not None:
        key = sys.stdin.readline().strip()
    elif (variable := run.options["key_env"]) is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise CommandError(f"{variable} is not set")
    else:
        return {}
    ensure_gateways_could_check(run.backend)
    return {KEY: key}


def add_test_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model", help="which of its models; else the first that chats, by its name"
    )
    parser.add_argument(
        "--paid",
        action="store_true",
        help="also try moderation, speech, transcription and image generation, one request "
        "each, which may cost money",
    )


def tested_text(tested: verbs.Row) -> str:
    of_model = f"\n\nTested with {tested['model']}." if tested["model"] else ""
    return verbs.rows_text(PROBES, tested["probes"]) + of_model


class Command(verbs.Command):
    help = "Upstreams: endpoints of others that answer requests."
    subcommands = (
        verbs.List(UPSTREAMS, "all upstreams", columns=LISTED),
        verbs.Show(
            UPSTREAMS,
            "one upstream and the models that it listed when it was last tested",
            tables={"models": verbs.cells("id", "context_tokens", "max_output_tokens", *PRICES)},
        ),
        verbs.Add(
            without(KEY, FLAG),
            "name an endpoint of others",
            positional=("name", "url"),
            done="Made the upstream {id}. upstreams test {id} shows what works of it.",
            arguments=add_new_arguments,
            body=lambda run: {FLAG: run.options[FLAG]} | key_of(run),
        ),
        verbs.Change(
            without(KEY),
            "change an upstream, or its key",
            arguments=add_key_arguments,
            body=key_of,
        ),
        verbs.Do(
            UPSTREAMS,
            "show what works of it, and record the models it lists",
            name="test",
            arguments=add_test_arguments,
            body=lambda run: run.given("model", "paid"),
            line=tested_text,
        ),
        verbs.Remove(UPSTREAMS, "remove an upstream and its key"),
    )
