"""What the database holds of metering."""

from metering.models.account import Account, ApiKey, Membership, Revision
from metering.models.audit import AuditEntry
from metering.models.budget import Budget, GatewayLease, Reservation
from metering.models.ledger import LedgerEntry, UsageHour
from metering.models.set_aside import SetAsideReport

__all__ = [
    "Account",
    "ApiKey",
    "AuditEntry",
    "Budget",
    "GatewayLease",
    "LedgerEntry",
    "Membership",
    "Reservation",
    "Revision",
    "SetAsideReport",
    "UsageHour",
]
