"""Migrations leave the processes of the release before working: they go on inserting rows meanwhile."""

from __future__ import annotations

from django.apps import apps
from django.db import models
from django.db.migrations import AddField
from django.db.migrations.loader import MigrationLoader


def added() -> list[tuple[str, str]]:
    loader = MigrationLoader(None)
    operations = [
        operation
        for (app, name), migration in sorted(loader.disk_migrations.items())
        if app == "agui_django" and name != "0001_initial"
        for operation in migration.operations
    ]
    return [(operation.model_name, operation.name) for operation in operations if isinstance(operation, AddField)]


def test_a_new_column_of_an_old_table_has_a_default_in_the_database() -> None:
    found = [(apps.get_model("agui_django", model)._meta.get_field(name), model, name) for model, name in added()]
    assert len(found) > 5
    new_tables = {"attachment", "feedback"}
    missing = [
        f"{model}.{name}"
        for field, model, name in found
        if isinstance(field, models.Field) and not field.null and not field.has_db_default() and model not in new_tables
    ]
    assert missing == []
