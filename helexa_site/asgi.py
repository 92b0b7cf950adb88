"""The ASGI application, for any ASGI server: importing it starts nothing."""

from __future__ import annotations

import logging
import os
import time
from functools import partial

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
django_application = get_asgi_application()

# Django must be set up before the following imports.
from django.core.signals import request_finished  # noqa: E402
from django.db import connections  # noqa: E402

from helexa_site.data_directory import secret_key  # noqa: E402
from helexa_site.routing import build_application  # noqa: E402
from helexa_site.settings import CONFIG  # noqa: E402
from inference.descriptors import raise_descriptor_limit  # noqa: E402
from inference.gateway.database import DatabaseCatalogue  # noqa: E402
from inference.gateway.gateway import Gateway  # noqa: E402
from inference.gateway.metrics_endpoint import MetricsEndpoint  # noqa: E402
from inference.logs import configure_logging  # noqa: E402
from metering.key_directory import KeyDirectory  # noqa: E402
from metering.ledger.spool import SPOOL_DIRECTORY  # noqa: E402
from metering.ledger.writer import LedgerWriter  # noqa: E402

raise_descriptor_limit()  # where another server than ``manage.py`` started this process
secret_key(CONFIG)  # here, rather than at the first login: it raises where it cannot work

# Under ASGI Django runs each of its own requests in a new thread, and no later request can use that
# thread's connection.
request_finished.connect(lambda **_: connections.close_all(), weak=False)

if not logging.getLogger().handlers:
    configure_logging("gateway")


def _ledger_begins_unix_s() -> float:
    """The ledger may have deleted entries of requests that ended earlier."""
    days = CONFIG.ledger_retention_days
    return time.time() - days * 86_400 if days else 0.0


gateway = Gateway(
    CONFIG,
    DatabaseCatalogue(),
    directory=KeyDirectory(),
    make_ledger=partial(
        LedgerWriter,
        spool_directory=CONFIG.data_dir / SPOOL_DIRECTORY,
        oldest_unix_s=_ledger_begins_unix_s,
    ),
)
metrics_endpoint = MetricsEndpoint(gateway)
application = build_application(
    gateway,
    django_app=django_application,
    metrics_endpoint=metrics_endpoint,
    resumes_batches=True,
)
