"""The site's own tables."""

from __future__ import annotations

from django.db import models


class LoginAttempt(models.Model):
    """Failed logins of one user from one address since that user's last login from there."""

    username = models.CharField(max_length=150)
    address = models.CharField(max_length=45)
    failures = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["address", "username"], name="login_attempt_once"),
        ]

    def __str__(self) -> str:
        return f"{self.username} from {self.address}"
