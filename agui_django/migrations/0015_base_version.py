from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agui_django", "0014_reviews"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="base_version",
            field=models.PositiveIntegerField(
                blank=True, help_text="The state's version that the run before it left; empty: not known.", null=True
            ),
        ),
    ]
