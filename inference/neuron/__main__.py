"""``python -m inference.neuron --name beast``: the neuron of this host, until SIGTERM.

Needs REDIS_URL, and HELEXA_DATA_DIR for the model cache.
"""

from __future__ import annotations

import argparse
import socket
import sys

from inference.garbage import uncollected
from inference.protocol.keys import NEURON_NAME

INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    try:
        with uncollected():
            from inference.neuron.neuron_process import (
                run,  # takes seconds to import: not for a bad argument
            )

        return run(options.name, expects_load=options.expects_load)
    except KeyboardInterrupt:  # before the neuron is up; from then on it ends in order
        return INTERRUPTED


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m inference.neuron", description=__doc__)
    parser.add_argument("--name", type=_name, default=socket.gethostname())
    parser.add_argument(
        "--expects-load",
        action="store_true",
        help="start an engine process at once, for a load that is about to come",
    )
    return parser.parse_args(arguments)


def _name(word: str) -> str:
    if not NEURON_NAME.fullmatch(word):
        raise argparse.ArgumentTypeError(
            f"{word!r}: a neuron's name is letters, digits, '.', '_' and '-', 63 at most"
        )
    return word


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
