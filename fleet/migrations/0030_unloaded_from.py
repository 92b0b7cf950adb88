"""The neurons from which a model that is kept loaded was unloaded, to stay so for now."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0029_quantization_q5_q6"),
    ]

    operations = [
        migrations.AddField(
            model_name="cataloguemodel",
            name="unloaded_from",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], models.JSONField()),
                default=list,
                editable=False,
                help_text="Neurons that it was unloaded from although it is kept loaded, until it is wanted again.",
            ),
        ),
    ]
