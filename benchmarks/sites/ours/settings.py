"""Settings of the measured site; as bare as D's, so that the ratio compares like with like."""

from __future__ import annotations

import os

from benchmarks.sites.database import databases

SECRET_KEY = "bench"
ALLOWED_HOSTS = ["*"]
DEBUG = False
USE_TZ = True
ROOT_URLCONF = "benchmarks.sites.ours.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MIDDLEWARE: list[str] = []
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "rest_framework",
    "rest_framework.authtoken",
    "agui_django",
    "benchmarks.sites.ours",
]
DATABASES = databases()
if os.environ.get("AGUI_BENCH_LAYER"):
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            "CONFIG": {"hosts": ["redis://127.0.0.1:6379/0"], "prefix": os.environ["AGUI_BENCH_LAYER"]},
        }
    }
AGUI_DJANGO = {
    "AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"],
    "MAX_RUNS": 2000,
    "MAX_RUNS_PER_USER": None,
}
