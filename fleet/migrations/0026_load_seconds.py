"""What a load took, and when its engine started: how long the next one takes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0025_sampling_and_queue"),
    ]

    operations = [
        migrations.AddField(
            model_name="loadjob",
            name="engine_started_at",
            field=models.DateTimeField(
                blank=True,
                help_text="When its engine started, after downloads and its turn.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="loadjob",
            name="expected_load_s",
            field=models.FloatField(
                blank=True,
                help_text="What the last load of the model on that neuron took.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="loadmeasurement",
            name="load_s",
            field=models.FloatField(
                help_text="Seconds from its engine's start until it was loaded.", null=True
            ),
        ),
    ]
