"""Every write to accounts, keys and budgets by an actor: each takes the actor and leaves an audit
entry. Keyword-only functions named <entity>_<action>."""

from metering.services.accounts import (
    account_check,
    account_create,
    account_delete,
    account_update,
    capture_check,
    captured_request_read,
    limits_check,
    membership_remove,
    membership_set,
)
from metering.services.audit import audit_entry_create, revision_bump
from metering.services.budgets import (
    Cap,
    budget_check,
    budget_create,
    budget_remove,
    budget_update,
)
from metering.services.keys import (
    DEFAULT_SCOPES,
    CreatedKey,
    key_check,
    key_create,
    key_revoke,
    key_update,
)

__all__ = [
    "DEFAULT_SCOPES",
    "Cap",
    "CreatedKey",
    "account_check",
    "account_create",
    "account_delete",
    "account_update",
    "audit_entry_create",
    "budget_check",
    "budget_create",
    "budget_remove",
    "budget_update",
    "capture_check",
    "captured_request_read",
    "key_check",
    "key_create",
    "key_revoke",
    "key_update",
    "limits_check",
    "membership_remove",
    "membership_set",
    "revision_bump",
]
