"""The REST API (Django REST framework): threads, messages, state, runs and questions for frontends and services.

Needs the extra ``api`` (django-filter, drf-spectacular); a site includes ``agui_django.api.urls``.
"""
