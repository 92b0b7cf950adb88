"""``python -m helexa_site.reference``: writes the generated pages of docs/."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
django.setup()

from helexa_site.reference import commands_page, surface_page  # noqa: E402 - after the setup

commands_page.write()
surface_page.write()
