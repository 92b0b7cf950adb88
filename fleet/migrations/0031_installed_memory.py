"""A device's own memory, where its neuron may use less of it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0030_unloaded_from"),
    ]

    operations = [
        migrations.AddField(
            model_name="device",
            name="installed_memory_bytes",
            field=models.PositiveBigIntegerField(
                blank=True,
                help_text="All of the device's memory, where HELEXA_MEMORY_LIMIT lets less of it be used.",
                null=True,
            ),
        ),
    ]
