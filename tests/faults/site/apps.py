"""Puts the places into the engine when the site starts; nothing of this is in the package."""

from __future__ import annotations

from django.apps import AppConfig


class FaultsConfig(AppConfig):
    name = "tests.faults.site"
    label = "faults_site"

    def ready(self) -> None:
        from tests.faults.site.points import install

        install()
