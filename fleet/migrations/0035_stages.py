"""What a model's layers take, and the stages of a load: how a model is divided over devices."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0034_spread"),
    ]

    operations = [
        migrations.AddField(
            model_name="cataloguemodel",
            name="layer_costs",
            field=models.JSONField(
                blank=True,
                editable=False,
                help_text="What its layers take, once a load did not fit on one device; stages are planned by it.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="loadjob",
            name="stages",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="How its layers are divided over those devices; empty: they are not.",
            ),
        ),
        migrations.AddField(
            model_name="loadjob",
            name="predicted_tokens_per_s",
            field=models.FloatField(
                blank=True,
                help_text="What the plan of its stages expects for one request.",
                null=True,
            ),
        ),
    ]
