"""Whether an upstream's usage was counted or estimated."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("metering", "0007_captured_requests"),
    ]

    operations = [
        migrations.AddField(
            model_name="requestrecord",
            name="is_usage_estimated",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="An upstream did not report the tokens: they are estimated.",
            ),
        ),
    ]
