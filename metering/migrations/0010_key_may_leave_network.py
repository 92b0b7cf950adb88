"""Whether a key's requests may go to upstreams outside the network."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("metering", "0009_series_rows"),
    ]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="may_leave_network",
            field=models.BooleanField(
                db_default=True,
                default=True,
                help_text="Its requests may go to upstreams outside your network, where the model's may.",
                verbose_name="may leave the network",
            ),
        ),
    ]
