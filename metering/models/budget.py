"""Hard caps, the reservations on them, and the gateways that hold reservations.

Rows of ``Budget`` are read by the ORM and changed by ``metering.ledger.writer`` in raw SQL.
"""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models

from metering.models.account import Account, ApiKey
from metering.money import amount_words


class Budget(models.Model):
    """A cap on a key or on an account. Spent plus reserved never passes it."""

    class Unit(models.TextChoices):
        TOKENS = "tokens"
        MICRO_USD = "micro_usd", "micro-USD"

    class Window(models.TextChoices):
        BALANCE = "balance", "balance (never resets)"
        DAY = "day", "calendar day (UTC)"
        MONTH = "month", "calendar month (UTC)"
        SECONDS = "seconds", "so many seconds from the first request"

    account = models.ForeignKey(
        Account, on_delete=models.CASCADE, null=True, blank=True, related_name="budgets"
    )
    key = models.ForeignKey(
        ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="budgets"
    )
    unit = models.CharField(max_length=10, choices=Unit.choices)
    cap = models.PositiveBigIntegerField()
    window = models.CharField(max_length=8, choices=Window.choices, default=Window.BALANCE)
    window_s = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], verbose_name="window (seconds)"
    )
    spent = models.PositiveBigIntegerField(default=0, editable=False)
    reserved = models.PositiveBigIntegerField(default=0, editable=False)
    window_ends_unix_s = models.BigIntegerField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(account__isnull=True) ^ models.Q(key__isnull=True),
                name="budget_on_key_or_account",
            ),
            models.CheckConstraint(
                condition=models.Q(window="seconds") ^ models.Q(window_s__isnull=True),
                name="budget_seconds_said",
            ),
        ]

    def __str__(self) -> str:
        owner = self.key_id or self.account_id
        return f"{amount_words(self.unit, self.cap)}, {self.get_window_display()}, on {owner}"


class Reservation(models.Model):
    """What one open request holds on one budget."""

    request_id = models.CharField(max_length=64)
    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="reservations")
    amount = models.PositiveBigIntegerField()
    gateway_id = models.CharField(max_length=64, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["request_id", "budget"], name="reservation_once"),
        ]


class GatewayLease(models.Model):
    """A gateway renews it while it lives; what a gateway without one has reserved is swept."""

    gateway_id = models.CharField(max_length=64, primary_key=True)
    lease_until_unix_s = models.BigIntegerField()
