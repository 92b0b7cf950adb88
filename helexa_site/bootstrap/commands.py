"""Dispatches commands, and installs their requirements. Those of ``BEFORE_DJANGO`` start without
Django, or with broken settings. Standard library only at import."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from helexa_site.bootstrap.arguments import (
    default_neuron_name,
    gateway_host,
    parse_doctor,
    parse_neuron,
    parse_serve,
    parser_of,
)
from helexa_site.bootstrap.console import BootstrapError, complain, print_line, print_step
from helexa_site.bootstrap.environment import ensure_environment, venv_dir
from helexa_site.config import open_only_what_is_there
from helexa_site.data_directory import keep_joining, kept_joining, redis_url_of
from helexa_site.program import (
    Installation,
    default_data_dir,
    installation,
    neuron_program,
    program,
)
from inference.descriptors import raise_descriptor_limit
from inference.garbage import uncollected
from inference.settings.gateway import LISTEN_HOST
from inference.settings.setting import EXIT_MISCONFIGURED, SettingError
from inference.settings.storage import DATA_DIR, REDIS_URL
from inference.settings.table import check_settings, unknown_names
from inference.version import VERSION, this_build, version_object

REQUIREMENTS = "requirements.txt"
REQUIREMENTS_FOR = {"neuron": REQUIREMENTS, "gateway": "requirements-gateway.txt"}
TEST_REQUIREMENTS = "requirements-dev.txt"
SUCCESS = 0
FAILURE = 1
INTERRUPTED = 130
OUTPUT_CLOSED = 141
"""128 + SIGPIPE: the reader closed the pipe."""
SETS_UP = ("migrate", "makemigrations", "restore", "shell")
"""Commands that work without a database."""
HELP_FLAGS = {"--help", "-h"}

OVERVIEW = """\
helexa turns the machines you own into one private AI endpoint.

  {program} serve            run everything here (see serve --help)
  {program} neurons invite N print a line that makes another host a neuron
  {program} neuron           run a neuron alone, on that other host
  {program} test [ARGS]      run the tests; ARGS go to pytest
  {program} chat             talk to a model of a running server
  {program} doctor           check this host, with a remedy for each fault
  {program} status           the fleet at one look; models and neurons run it
  {program} COMMAND          any other command, of helexa or of Django
"""
NOT_INSTALLED = """\
All commands are listed here, and each prints its flags with --help, once the environment exists:
{program} environment gateway makes it.
"""


def main() -> int:
    return run(sys.argv[1:])


def run(arguments: list[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
    raise_descriptor_limit()  # for this process and its children
    if arguments[:1] == ["help"] and arguments[1:2] and arguments[1] in BEFORE_DJANGO:
        arguments = [arguments[1], "--help"]
    own = BEFORE_DJANGO.get(arguments[0]) if arguments else None
    try:
        try:
            return own(arguments[1:]) if own else _django(arguments)
        finally:
            sys.stdout.flush()
    except (SettingError, BootstrapError) as error:
        complain(str(error))
        return EXIT_MISCONFIGURED if isinstance(error, SettingError) else FAILURE
    except BrokenPipeError:
        # Python would retry the write at its exit.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _check_settings() -> None:
    check_settings(os.environ)
    for name, near in unknown_names(os.environ):
        hint = f"did you mean {near}?" if near else "the settings page lists them all"
        complain(f"warning: {name} is no setting that is known here; {hint}")


def _serve(arguments: list[str]) -> int:
    options = parse_serve(arguments)
    _check_settings()
    ensure_environment(REQUIREMENTS_FOR["neuron" if options.with_neuron else "gateway"])
    from helexa_site.bootstrap.serve import serve

    return serve(options)


def _neuron(arguments: list[str]) -> int:
    options = parse_neuron(arguments)
    _check_settings()
    data_dir, joining = _data_dir(), options.joining
    if joining is None and not REDIS_URL.read(os.environ):
        joining = kept_joining(data_dir, options.name)
        if joining is None:
            raise BootstrapError(
                "a neuron needs to know its gateway's Redis: on the gateway run "
                f"`{program()} neurons invite NAME` and paste here what it prints, or set "
                "REDIS_URL, as in REDIS_URL=redis://:password@gateway:6379/0"
            )
    ensure_environment(REQUIREMENTS)
    if options.joining is not None:
        keep_joining(options.joining, data_dir)
        text = f"keeping the invitation of {options.joining.neuron}; from now on: "
        print_step("neuron", f"{text}{neuron_program()} neuron")
    if joining is not None:
        os.environ[REDIS_URL.name] = redis_url_of(joining, data_dir)
    os.environ[DATA_DIR.name] = str(data_dir)
    sys.stdout.flush()
    from inference.environment import Role, child_environment

    name = options.name or (joining.neuron if joining else default_neuron_name())
    command = [sys.executable, "-m", "inference.neuron", "--name", name]
    os.execve(sys.executable, command, child_environment(Role.NEURON) | {"PYTHONUNBUFFERED": "1"})


def _data_dir() -> Path:
    return (DATA_DIR.read(os.environ) or default_data_dir()).absolute()


def _test(arguments: list[str]) -> int:
    if installation() is not Installation.CHECKOUT:
        raise BootstrapError(
            "the tests are not installed: run them in a checkout of helexa's repository, with "
            "`python3 manage.py test`"
        )
    if HELP_FLAGS & {*arguments}:
        sys.stdout.write(f"usage: {program()} test [ARGS]\n\nRun the tests; ARGS go to pytest.\n")
        return SUCCESS
    ensure_environment(TEST_REQUIREMENTS)
    from helexa_site.bootstrap.suite import run_suite

    return run_suite(arguments)


def _environment(arguments: list[str]) -> int:
    what = "Make the environment (HELEXA_VENV) for this kind of process, or mend it."
    parser = parser_of("environment", what)
    parser.add_argument("kind", choices=REQUIREMENTS_FOR)
    kind = parser.parse_args(arguments).kind
    check_settings(os.environ)
    ensure_environment(REQUIREMENTS_FOR[kind])
    print_step("environment", f"{sys.prefix} has all that a {kind} needs")
    return SUCCESS


def _version(arguments: list[str]) -> int:
    is_json = "--json" in arguments
    text = json.dumps(version_object(this_build()), indent=2) if is_json else f"helexa {VERSION}"
    sys.stdout.write(f"{text}\n")
    return SUCCESS


def _doctor(arguments: list[str]) -> int:
    options = parse_doctor(arguments)
    if importlib.util.find_spec("django") is None:
        ensure_environment(REQUIREMENTS)
    if not REDIS_URL.read(os.environ) and (joining := kept_joining(_data_dir(), None)):
        os.environ[REDIS_URL.name] = redis_url_of(joining, _data_dir())
    os.environ.setdefault(LISTEN_HOST.name, options.host)
    from helexa_site.doctor import examine, has_failed, lines_of, object_of

    findings = []
    for finding in examine(options.host, options.port):
        findings.append(finding)
        for line in () if options.json else lines_of(finding):
            print_line(line)
    if options.json:
        sys.stdout.write(json.dumps(object_of(findings), indent=2) + "\n")
    return FAILURE if has_failed(findings) else SUCCESS


def _django(arguments: list[str]) -> int:
    asks_for_help = not arguments or arguments[0] == "help" or bool(HELP_FLAGS & {*arguments})
    if importlib.util.find_spec("django") is None:
        if asks_for_help and not any(venv_dir().glob("lib/python*/site-packages/django")):
            sys.stdout.write(f"{OVERVIEW}\n{NOT_INSTALLED}".format(program=program()))
            return SUCCESS
        ensure_environment(REQUIREMENTS)
    if not set(arguments) - HELP_FLAGS - {"help"}:
        # Not by print_line, which keeps its output on one line.
        sys.stdout.write(OVERVIEW.format(program=program()) + "\n")
        sys.stdout.flush()
    if arguments[:1] == ["gateway"]:
        # Decides the allowed hosts, in settings that Django reads before a command's flags.
        os.environ[LISTEN_HOST.name] = gateway_host(arguments[1:])
        _check_settings()
    with uncollected():
        from django.core.management import execute_from_command_line
        from django.db import Error

    if not asks_for_help and arguments[0] not in SETS_UP:
        open_only_what_is_there()
    try:
        execute_from_command_line([sys.argv[0], *arguments])
    except Error as error:
        from metering.output import database_words

        if "--traceback" in arguments:
            raise
        raise BootstrapError(database_words(error)) from error
    return SUCCESS


BEFORE_DJANGO: dict[str, Callable[[list[str]], int]] = {
    "serve": _serve,
    "neuron": _neuron,
    "test": _test,
    "doctor": _doctor,
    "environment": _environment,
    "--version": _version,
    "version": _version,
}
