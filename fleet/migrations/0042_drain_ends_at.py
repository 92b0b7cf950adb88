"""Drains that end what still runs after a while."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0041_stage_links")]

    operations = [
        migrations.AddField(
            model_name="neuronwish",
            name="drain_ends_at",
            field=models.DateTimeField(blank=True, null=True),
        )
    ]
