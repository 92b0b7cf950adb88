"""``{{ at|moment }}``, a built-in of every template."""

from __future__ import annotations

from django import template

from helexa_site.web.moments import moment_text

register = template.Library()
register.filter("moment", moment_text)
