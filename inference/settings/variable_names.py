"""Names of environment variables that settings and targets may have."""

from __future__ import annotations

import re

from inference.environment import API_KEY, SECRET_NAMES

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
OTHERS_KEY = re.compile(rf"(?!(?:{'|'.join(sorted(SECRET_NAMES - API_KEY))})$){VARIABLE.pattern}")
"""A variable whose key is for another server. None of this one's own secrets is ever sent to one; a
key of the API may be another helexa's."""
