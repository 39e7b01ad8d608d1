"""Which view answers at which address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, path, re_path

from agui_django.api.views import agents, docs, export, interrupts, messages, runs, state, threads, usage
from agui_django.transports.views import unknown


def _both(route: str, view: type[Any], name: str) -> list[URLPattern]:
    """An address with and without a slash at its end: no redirects."""
    made: Callable[..., Any] = view.as_view()
    return [path(route, made, name=name), path(f"{route}/", made)]


urlpatterns = [
    *_both("agents", agents.Agents, "agents"),
    *_both("threads", threads.Threads, "threads"),
    *_both("threads/<int:pk>", threads.OneThread, "thread"),
    *_both("threads/<int:pk>/branches", threads.Branches, "thread-branches"),
    *_both("threads/<int:pk>/branches/<uuid:run>/restore", threads.RestoreBranch, "thread-branch-restore"),
    *_both("threads/<int:pk>/fork", threads.ForkThread, "thread-fork"),
    *_both("threads/<int:pk>/export", export.ExportThread, "thread-export"),
    *_both("threads/<int:pk>/messages", messages.Messages, "thread-messages"),
    *_both("threads/<int:pk>/runs", runs.ThreadRuns, "thread-runs"),
    *_both("threads/<int:pk>/state", state.State, "thread-state"),
    *_both("threads/<int:pk>/state/versions", state.StateVersions, "thread-state-versions"),
    *_both("threads/<int:pk>/state/versions/<int:version>", state.OneStateVersion, "thread-state-version"),
    *_both("runs", runs.Runs, "runs"),
    *_both("runs/<uuid:pk>", runs.OneRun, "run"),
    *_both("runs/<uuid:pk>/events", runs.Events, "run-events"),
    *_both("runs/<uuid:pk>/cancel", runs.CancelRun, "run-cancel"),
    *_both("interrupts", interrupts.Interrupts, "interrupts"),
    *_both("interrupts/<int:pk>", interrupts.OneInterrupt, "interrupt"),
    *_both("interrupts/<int:pk>/answer", interrupts.AnswerInterrupt, "interrupt-answer"),
    *_both("interrupts/<int:pk>/seen", interrupts.SeenInterrupt, "interrupt-seen"),
    *_both("feedback", messages.AllFeedback, "feedback"),
    *_both("messages/<int:pk>/feedback", messages.MessageFeedback, "message-feedback"),
    *_both("usage", usage.Usage, "usage"),
    *_both("schema", docs.SchemaDocument, "schema"),
    path("docs", docs.Docs.as_view(), name="docs"),
    # Everything else below the prefix: JSON, too.
    re_path(r"", unknown, name="unknown"),
]
