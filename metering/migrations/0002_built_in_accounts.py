"""The accounts that are always there, and the row that counts changes."""

from django.db import migrations


def create(apps, schema_editor):
    account = apps.get_model("metering", "Account")
    account.objects.get_or_create(
        name="anonymous", defaults={"description": "Callers without a key."}
    )
    account.objects.get_or_create(
        name="shared", defaults={"description": "Callers with HELEXA_API_KEY."}
    )
    apps.get_model("metering", "Revision").objects.get_or_create(id=1)


class Migration(migrations.Migration):
    dependencies = [("metering", "0001_initial")]
    operations = [migrations.RunPython(create, migrations.RunPython.noop)]
