"""The full-text index of messages on PostgreSQL; nothing on other databases, where searching reads the texts."""

from typing import Any

from django.db import migrations

# The expression must be that of runs/searching.py. Its length is bounded because a tsvector's is: a longer text would
# fail the insert.
CREATE = """
CREATE INDEX IF NOT EXISTS agui_message_search ON agui_django_message
USING gin (to_tsvector('simple'::regconfig, left(search_text, 100000)))
WHERE superseded_by_id IS NULL AND search_text <> ''
"""


def create(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(CREATE)


def drop(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP INDEX IF EXISTS agui_message_search")


class Migration(migrations.Migration):
    dependencies = [("agui_django", "0005_branches")]

    operations = [migrations.RunPython(create, drop)]
