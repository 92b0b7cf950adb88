"""``python -m helexa_site COMMAND``: manage.py, where a wheel has none."""

from __future__ import annotations

import sys

from helexa_site.bootstrap.commands import run

sys.exit(run(sys.argv[1:]))
