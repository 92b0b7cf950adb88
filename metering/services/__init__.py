"""Every write to accounts, keys and budgets by an actor: each takes the actor and leaves an audit
entry. Keyword-only functions named <entity>_<action>."""

from metering.services.accounts import (
    account_check,
    account_create,
    account_delete,
    account_update,
    captured_request_read,
    membership_remove,
    membership_set,
)
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
    "budget_check",
    "budget_create",
    "budget_remove",
    "budget_update",
    "captured_request_read",
    "key_check",
    "key_create",
    "key_revoke",
    "key_update",
    "membership_remove",
    "membership_set",
]
