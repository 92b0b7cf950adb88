"""What a model could do when it was last loaded: told of it while it is not."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0026_load_seconds"),
    ]

    operations = [
        migrations.AddField(
            model_name="loadmeasurement",
            name="context_tokens",
            field=models.PositiveIntegerField(
                help_text="The limit that was enforced on prompt plus output.", null=True
            ),
        ),
        migrations.AddField(
            model_name="loadmeasurement",
            name="capabilities",
            field=models.JSONField(help_text="What it could do; empty: not recorded.", null=True),
        ),
    ]
