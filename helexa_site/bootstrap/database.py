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
from helexa_site.migration_guard import SchemaError, ensure_schema_is_known, missing_migrations

ADMIN_NAME = "admin"
PASSWORD_BYTES = 12


def prepare_database(*, with_model: bool) -> str | None:
    """Migrates where needed, makes the first admin, offers the default model unless it was deleted.

    Returns the password of a new first admin. Raises ``BootstrapError``.
    """
    _set_up_django()
    with _database():
        try:
            ensure_schema_is_known()
        except SchemaError as error:
            raise BootstrapError(str(error)) from error
        if missing_migrations():
            print_step("database", "migrating")
            call_command("migrate", verbosity=0, interactive=False)
        password = _ensure_admin()
        if with_model:
            _offer_default_model()
    print_step("database", f"ready ({connection.vendor})")
    return password


def prepare_fleet(*, with_neuron: bool, share: Share | None) -> None:
    """Creates this machine's neuron row and publishes Redis' address for invited hosts. Raises
    ``BootstrapError``."""
    from fleet import services  # models import only after django.setup()
    from metering.actor import COMMAND

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


@contextlib.contextmanager
def _database() -> Iterator[None]:
    """Raises ``BootstrapError`` in place of Django's errors, and closes the connections."""
    try:
        yield
    except DatabaseError as error:
        raise BootstrapError(f"the database cannot be used: {_first_line(error)}") from error
    finally:
        connections.close_all()


def _set_up_django() -> None:
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise BootstrapError(f"the settings cannot be used: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def has_keys() -> bool:
    """True also where the database does not answer: only a hint depends on it."""
    from metering.models import ApiKey  # models import only after django.setup()

    with contextlib.suppress(BootstrapError), _database():
        return ApiKey.objects.exists()
    return True


def default_model_entry() -> CatalogueEntry | None:
    """``None``: an operator has disabled or deleted it. Raises ``BootstrapError``."""
    from fleet import selectors  # models import only after django.setup()
    from fleet.services.offers.catalogue import DEFAULT_MODEL_NAME

    with _database():
        return selectors.catalogue_find(DEFAULT_MODEL_NAME)


def _ensure_admin() -> str | None:
    from django.contrib.auth.models import User  # models import only after django.setup()

    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    User.objects.create_superuser(username=ADMIN_NAME, email="", password=password)
    return password


def _offer_default_model() -> None:
    from fleet import services
    from metering.actor import COMMAND

    services.default_model_offer(actor=COMMAND)
