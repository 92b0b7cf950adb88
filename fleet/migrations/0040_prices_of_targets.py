"""The help of targets, which may have prices."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0039_automatic_speculation"),
    ]

    operations = [
        migrations.AlterField(
            model_name="cataloguemodel",
            name="targets",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="Where its requests go, in order: own (this fleet's replicas) or UPSTREAM/MODEL, each with a condition (when ready, when queue_longer_than N, when waiting_longer_than S) and a weight, as in box/llama when queue_longer_than 4, and prices where they are not the model's (input_price 0.5 output_price 2, in USD per million). Empty: to its source.",
            ),
        ),
    ]
