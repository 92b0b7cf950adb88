"""The tables of helexa 0.2.0."""

from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [
        ("conversations", "0001_initial"),
        ("conversations", "0002_owner_and_size"),
        ("conversations", "0003_last_event_number"),
        ("conversations", "0004_working_gateway"),
    ]
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="StoredResponse",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("model", models.CharField(max_length=256)),
                ("status", models.CharField(max_length=16)),
                ("background", models.BooleanField(default=False)),
                ("previous_id", models.CharField(blank=True, max_length=64)),
                ("response_json", models.TextField()),
                ("input_items_json", models.TextField()),
                ("created_at", models.DateTimeField(db_index=True)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("account", models.CharField(db_index=True, default="anonymous", max_length=64)),
                ("size_bytes", models.PositiveBigIntegerField(default=0)),
                ("last_event_number", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "gateway_id",
                    models.CharField(blank=True, db_default="", default="", max_length=32),
                ),
            ],
            options={
                "ordering": ["-created_at"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                (
                                    "queued",
                                    "in_progress",
                                    "completed",
                                    "incomplete",
                                    "failed",
                                    "cancelled",
                                ),
                            )
                        ),
                        name="stored_response_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ("queued", "in_progress")),
                            ("lease_until__isnull", True),
                            _connector="XOR",
                        ),
                        name="stored_response_leased_while_active",
                    ),
                ],
            },
        )
    ]
