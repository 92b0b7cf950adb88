from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, connection

from helexa_site.bootstrap.arguments import DEFAULT_HOST, DEFAULT_PORT
from helexa_site.data_directory import SecretKeyError, secret_key
from helexa_site.management.base import QuickCommand
from helexa_site.migration_guard import SchemaError, ensure_schema_is_known
from helexa_site.program import program
from helexa_site.settings import CONFIG
from inference.garbage import uncollected


class Command(QuickCommand):
    help = "Serve the API and the admin until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on")
        parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            secret_key(CONFIG)
            ensure_schema_is_known()
        except (SecretKeyError, SchemaError) as error:
            raise CommandError(str(error)) from error
        except DatabaseError:
            pass  # the database is offline: requests get an error until it is back
        finally:
            connection.close()
        if options["host"] != (CONFIG.listen_host or DEFAULT_HOST):
            raise CommandError(
                f"the settings were made for another --host; run {program()} gateway"
            )
        with uncollected():
            from inference.gateway.server.run import run

        run(options["host"], options["port"])
