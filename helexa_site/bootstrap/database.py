"""The database at start: migrations, a first admin, and the default model."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import DatabaseError, connection, connections

from fleet.catalogue import CatalogueEntry
from helexa_site.bootstrap.arguments import default_neuron_name
from helexa_site.bootstrap.console import print_step
from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.bootstrap.sharing import Share
from helexa_site.migration_guard import ensure_schema_is_known, missing_migrations

# Models are imported inside the functions: only after django.setup().


def prepare_database(*, with_model: bool) -> str | None:
    """Migrates where needed, makes the first admin, offers the default model unless it was deleted.

    Returns the password of a new first admin. Raises ``BootstrapError``.
    """
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise BootstrapError(f"the settings cannot be used: {_first_line(error)}") from error
    from django.contrib.auth.models import User

    from fleet import services
    from metering.audit import COMMAND

    with _database():
        ensure_schema_is_known()
        if missing_migrations():
            print_step("database", "migrating")
            call_command("migrate", verbosity=0, interactive=False)
        password = None
        if not User.objects.filter(is_superuser=True).exists():
            password = secrets.token_urlsafe(12)
            User.objects.create_superuser(username="admin", email="", password=password)
        if with_model:
            services.default_model_offer(actor=COMMAND)
    print_step("database", f"ready ({connection.vendor})")
    return password


def prepare_fleet(*, with_neuron: bool, share: Share | None) -> None:
    """Creates this machine's neuron row and publishes Redis' address for invited hosts. Raises
    ``BootstrapError``."""
    from fleet import services
    from metering.audit import COMMAND

    with _database():
        if with_neuron:
            services.neuron_expect(actor=COMMAND, neuron_name=default_neuron_name())
        services.share_record(
            actor=COMMAND,
            address=share.address if share else "",
            is_tls=share.is_tls if share else False,
            certificate=share.certificate() if share else "",
        )
        services.redis_users_apply()


def has_keys() -> bool:
    """True also where the database does not answer: only a hint depends on it."""
    from metering.models import ApiKey

    with contextlib.suppress(BootstrapError), _database():
        return ApiKey.objects.exists()
    return True


def default_model_entry() -> CatalogueEntry | None:
    """``None``: an operator has disabled or deleted it. Raises ``BootstrapError``."""
    from fleet import selectors
    from fleet.services.offers.catalogue import DEFAULT_MODEL_NAME

    with _database():
        return selectors.catalogue_find(DEFAULT_MODEL_NAME)


@contextlib.contextmanager
def _database() -> Iterator[None]:
    """Raises ``BootstrapError`` in place of Django's errors, and closes the connections."""
    try:
        yield
    except DatabaseError as error:
        raise BootstrapError(f"the database cannot be used: {_first_line(error)}") from error
    finally:
        connections.close_all()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
