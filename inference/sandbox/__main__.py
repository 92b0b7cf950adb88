"""``python -m inference.sandbox --fd N``: the fork server."""

from __future__ import annotations

import sys

from inference.sandbox.fork_server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
