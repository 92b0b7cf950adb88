"""Who manages accounts over REST: keys with ``accounts:read`` and ``accounts:write``, people with
the permissions that the admin asks for."""

from __future__ import annotations

from typing import cast

from django.utils.functional import cached_property

from fleet.api.access import COMMAND_CALLER, FleetView
from metering.api.authentication import Caller
from metering.errors import ScopeNotHeldError
from metering.principal import Scope

SHOWN_ONCE = {"Cache-Control": "no-store"}


class AccountingView(FleetView):
    read_scope = Scope.ACCOUNTS_READ
    write_scope = Scope.ACCOUNTS_WRITE
    reads_by_permission = True

    @cached_property
    def caller(self) -> Caller:
        return cast(Caller, self.request.auth)

    def ensure_may_grant(self, scopes: list[str]) -> None:
        """A key grants only what it may do itself. Raises ``ScopeNotHeldError``."""
        if self.caller is COMMAND_CALLER or self.caller.username is not None:
            return
        principal = self.caller.principal
        held = set() if principal is None else {str(scope) for scope in principal.scopes}
        if lacking := sorted(set(scopes) - held):
            raise ScopeNotHeldError(
                f"This key cannot grant the scope {lacking[0]}, which it does not have itself."
            )
