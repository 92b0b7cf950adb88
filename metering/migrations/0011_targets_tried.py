"""Which of its model's targets a request left."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("metering", "0010_key_may_leave_network"),
    ]

    operations = [
        migrations.AddField(
            model_name="requestrecord",
            name="targets_tried",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The model's targets that it left, each with its error's code.",
                max_length=500,
            ),
        ),
    ]
