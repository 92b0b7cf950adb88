"""A pytest plugin, loaded before Django's settings are: gives the run an environment of its own."""

from __future__ import annotations

import os

from helexa_site.bootstrap.suite import isolate

isolate(os.environ)
