"""Which command was asked for, and what it needs before it can run.

``serve``, ``test`` and ``neuron`` live here, because they start before Django is there; every
other word is Django's. Standard library only at import.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable

from helexa_site.bootstrap.arguments import gateway_host, parse_neuron, parse_serve
from helexa_site.bootstrap.console import complain, say_line
from helexa_site.bootstrap.environment import ensure_environment
from helexa_site.bootstrap.errors import BootstrapError

REQUIREMENTS = "requirements.txt"
TEST_REQUIREMENTS = "requirements-dev.txt"
SUCCESS = 0
FAILURE = 1
INTERRUPTED = 130
HELP_WORDS = ({"help"}, {"--help"}, {"-h"}, set[str]())

OVERVIEW = """\
helexa turns the machines you own into one private AI endpoint.

  manage.py serve            run everything here (see serve --help)
  manage.py neuron --name N  run one more GPU host's worker, with REDIS_URL set
  manage.py test [ARGS]      run the tests; ARGS go to pytest
  manage.py COMMAND          any of Django's commands, below
"""


def run(arguments: list[str]) -> int:
    """Exit code of the command in ``arguments``. A ``BootstrapError`` is one line and code 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
    own: dict[str, Callable[[list[str]], int]] = {
        "serve": _serve,
        "neuron": _neuron,
        "test": _test,
    }
    name = arguments[0] if arguments else ""
    try:
        return own[name](arguments[1:]) if name in own else _django(arguments)
    except BootstrapError as error:
        complain(str(error))
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def _serve(arguments: list[str]) -> int:
    options = parse_serve(arguments)
    ensure_environment(REQUIREMENTS)
    from helexa_site.bootstrap.serve import serve

    return serve(options)


def _neuron(arguments: list[str]) -> int:
    name = parse_neuron(arguments)
    if not os.environ.get("REDIS_URL"):
        raise BootstrapError(
            "a neuron needs REDIS_URL, the Redis that its gateway uses, "
            "as in REDIS_URL=redis://:password@gateway:6379/0"
        )
    ensure_environment(REQUIREMENTS)
    sys.stdout.flush()
    from helexa_site.bootstrap.children import child_environment
    from inference.environment import Role

    command = [sys.executable, "-m", "inference.neuron", "--name", name]
    os.execve(sys.executable, command, child_environment(Role.NEURON))


def _test(arguments: list[str]) -> int:
    ensure_environment(TEST_REQUIREMENTS)
    from helexa_site.bootstrap.suite import run_suite

    return run_suite(arguments)


def _django(arguments: list[str]) -> int:
    if importlib.util.find_spec("django") is None:
        ensure_environment(REQUIREMENTS)
    if set(arguments) in HELP_WORDS:
        say_line(OVERVIEW)
    if arguments[:1] == ["gateway"]:
        # Which names it answers to follows from this, in settings that Django reads before it
        # reads a command's flags.
        os.environ["HELEXA_LISTEN_HOST"] = gateway_host(arguments[1:])
    from django.core.management import execute_from_command_line

    execute_from_command_line([sys.argv[0], *arguments])
    return SUCCESS
