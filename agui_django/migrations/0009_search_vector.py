"""On PostgreSQL the words of a message are a column that the database keeps; nothing on other databases.

An index of an expression alone (0006) makes the database parse the texts anew wherever it cannot be used, which took
most of the time of a search. No field of the model: who does not search never reads it.
"""

from typing import Any

from django.db import migrations

CREATE = (
    "DROP INDEX IF EXISTS agui_message_search",
    # A tsvector is bounded (1 MB), and a longer text would fail the insert: so is what it is made of.
    """ALTER TABLE agui_django_message ADD COLUMN IF NOT EXISTS search_vector tsvector
    GENERATED ALWAYS AS (to_tsvector('simple'::regconfig, left(search_text, 100000))) STORED""",
    """CREATE INDEX agui_message_search ON agui_django_message USING gin (search_vector)
    WHERE superseded_by_id IS NULL""",
)
DROP = (
    "DROP INDEX IF EXISTS agui_message_search",
    "ALTER TABLE agui_django_message DROP COLUMN IF EXISTS search_vector",
)


def create(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in CREATE:
            schema_editor.execute(statement)


def drop(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in DROP:
            schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("agui_django", "0008_watched")]

    operations = [migrations.RunPython(create, drop)]
