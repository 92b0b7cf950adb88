"""Load jobs whose device placement chose, which may continue divided over several."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0036_targets"),
    ]

    operations = [
        migrations.AddField(
            model_name="loadjob",
            name="may_divide",
            field=models.BooleanField(
                db_default=False,
                default=False,
                editable=False,
                help_text="Placement chose its device: where that is too small it may be divided.",
            ),
        ),
    ]
