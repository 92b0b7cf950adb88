#!/usr/bin/env python3
"""helexa's one command: ``serve``, ``test``, ``neuron``, and Django's own.

Runs on a bare Python: what the command needs is installed first. Kept readable to Pythons that are
too old, so that they get a sentence and not a syntax error.
"""

import sys

MINIMUM_PYTHON = (3, 11)
INTERRUPTED = 130


def main():
    if sys.version_info < MINIMUM_PYTHON:
        sys.exit(
            "helexa needs Python {}.{} or newer; this is {}.{} ({})".format(
                *MINIMUM_PYTHON, *sys.version_info[:2], sys.executable
            )
        )
    try:
        from helexa_site.bootstrap.commands import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
