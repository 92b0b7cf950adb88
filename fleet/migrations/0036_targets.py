"""The ordered targets of models."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0035_stages"),
    ]

    operations = [
        migrations.AddField(
            model_name="cataloguemodel",
            name="targets",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="Where its requests go, in order: own (this fleet's replicas) or UPSTREAM/MODEL, each with a condition (when ready, when queue_longer_than N, when waiting_longer_than S) and a weight, as in box/llama when queue_longer_than 4. Empty: to its source.",
            ),
        ),
        migrations.AlterField(
            model_name="cataloguemodel",
            name="may_leave_network",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Of a model with upstreams: its requests may leave your network.",
            ),
        ),
    ]
