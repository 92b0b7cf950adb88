"""The tables of helexa 0.2.0."""

from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [("batches", "0001_initial"), ("batches", "0002_file_expiry")]
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="StoredFile",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("account", models.CharField(db_index=True, max_length=64)),
                ("name", models.CharField(max_length=255)),
                ("purpose", models.CharField(max_length=32)),
                ("size_bytes", models.PositiveBigIntegerField()),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(blank=True, db_index=True, null=True)),
            ],
            options={"ordering": ["-created_at", "-id"]},
        ),
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("account", models.CharField(db_index=True, max_length=64)),
                ("key", models.CharField(blank=True, max_length=64)),
                ("dialect", models.CharField(max_length=16)),
                ("endpoint", models.CharField(max_length=64)),
                ("status", models.CharField(max_length=16)),
                ("input_file", models.CharField(max_length=64)),
                ("output_file", models.CharField(max_length=64)),
                ("error_file", models.CharField(max_length=64)),
                ("num_total", models.PositiveIntegerField(default=0)),
                ("num_completed", models.PositiveIntegerField(default=0)),
                ("num_failed", models.PositiveIntegerField(default=0)),
                ("num_expired", models.PositiveIntegerField(default=0)),
                ("num_cancelled", models.PositiveIntegerField(default=0)),
                ("metadata_json", models.TextField(default="{}")),
                ("failure", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("cancelled_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("lease_holder", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "verbose_name_plural": "batches",
                "ordering": ["-created_at", "-id"],
                "indexes": [
                    models.Index(fields=["status", "created_at"], name="batch_status_created")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                (
                                    "validating",
                                    "in_progress",
                                    "cancelling",
                                    "completed",
                                    "failed",
                                    "expired",
                                    "cancelled",
                                ),
                            )
                        ),
                        name="batch_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ("validating", "in_progress", "cancelling")),
                            ("ended_at__isnull", False),
                            _connector="XOR",
                        ),
                        name="batch_ended_once",
                    ),
                ],
            },
        ),
    ]
