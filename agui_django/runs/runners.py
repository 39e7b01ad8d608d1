"""Runners: hand the id of a pending run to a task queue, whose worker executes it as the web process would.

Law: a runner passes an id, nothing else; the rows are the truth. A task that is delivered twice, late or never does no
harm: a run is claimed once, and one that nobody claims is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar

from django.apps import apps
from django.conf import settings as django_settings
from django.db import connections
from django.utils.module_loading import import_string

from agui_django.conf import imported, settings

Execute = Callable[[str], None]
AsyncExecute = Callable[[str], Coroutine[Any, Any, None]]

#: Where workers find the task: every queue discovers the module ``tasks`` of an installed app.
TASK = "agui_django.tasks.execute_run"


class Runner:
    """Hands runs over. Subclass it for another queue, or to set `options`; name the class in the setting ``RUNNER``.

    `submit` may be called from several threads at once, outside any transaction. It returns when the queue has the id;
    an exception ends the run as failed. The task is one of the functions that `task` is given, called with that id in a
    process that has loaded the site's settings.
    """

    #: What to do about a `problem`, for the system checks.
    hint: ClassVar[str] = "See docs/howto/workers.md."
    #: Passed on to the queue with each task, such as the name of its queue.
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def problem(cls) -> str:
        """What this site lacks for it, in one sentence; empty: nothing."""
        return ""

    def submit(self, run_uuid: str) -> None:
        """Queue a task for a pending run."""
        raise NotImplementedError

    async def asubmit(self, run_uuid: str) -> None:
        """`submit`, from an event loop: in a thread, with a database connection of its own."""

        def work() -> None:
            try:
                self.submit(run_uuid)
            finally:
                connections.close_all()

        await asyncio.get_running_loop().run_in_executor(None, work)

    def task(self, execute_run: Execute, aexecute_run: AsyncExecute) -> Any:
        """Make the queue's task of one of two functions that execute a run; called once in each process."""
        return execute_run


class CeleryRunner(Runner):
    """Celery: one run per worker process or thread. The site's Celery app is used as it is configured."""

    hint = "pip install 'agui_django[celery]', and see docs/howto/workers.md."

    @classmethod
    def problem(cls) -> str:
        """Celery has to be installed."""
        return "" if find_spec("celery") else "celery is not installed."

    def submit(self, run_uuid: str) -> None:
        """Send the task by its name, through the site's app."""
        import_string(TASK).apply_async((run_uuid,), **self.options)

    def task(self, execute_run: Execute, aexecute_run: AsyncExecute) -> Any:
        """A shared task without result. Delivered early: what a killed worker held is ended, not begun again."""
        from celery import shared_task

        return shared_task(name=TASK, ignore_result=True, acks_late=False)(execute_run)


class ProcrastinateRunner(Runner):
    """Procrastinate, on PostgreSQL: its tasks are coroutines, so one worker executes many runs at once."""

    hint = "pip install 'agui_django[procrastinate]', add the app and migrate; see docs/howto/workers.md."

    @classmethod
    def problem(cls) -> str:
        """Its Django app has to be installed."""
        if not find_spec("procrastinate"):
            return "procrastinate is not installed."
        missing = not apps.is_installed("procrastinate.contrib.django")
        return "'procrastinate.contrib.django' is not in INSTALLED_APPS." if missing else ""

    def submit(self, run_uuid: str) -> None:
        """Defer the task."""
        import_string(TASK).configure(**self.options).defer(run_uuid=run_uuid)

    def task(self, execute_run: Execute, aexecute_run: AsyncExecute) -> Any:
        """A task of the app that `procrastinate.contrib.django` makes."""
        from procrastinate.contrib.django import app

        return app.task(name=TASK)(aexecute_run)


class DjangoTasksRunner(Runner):
    """Django's tasks: `django.tasks`, before Django 6.0 the package ``django-tasks``; any backend with workers."""

    hint = "pip install django-tasks-db, configure TASKS, and see docs/howto/workers.md."

    @classmethod
    def problem(cls) -> str:
        """There has to be a tasks API, and a backend that was chosen: Django's default one runs tasks at once."""
        try:
            _django_task()
        except ImportError:
            return "there is no django.tasks before Django 6.0, and django-tasks is not installed."
        chosen = (getattr(django_settings, "TASKS", None) or {}).values()
        at_once = (".ImmediateBackend", ".DummyBackend")  # Django's default, and the one for tests
        if all(str(backend.get("BACKEND", "")).endswith(at_once) for backend in chosen):
            return "TASKS names no backend that has workers."
        return ""

    def submit(self, run_uuid: str) -> None:
        """Enqueue the task."""
        import_string(TASK).enqueue(run_uuid)

    def task(self, execute_run: Execute, aexecute_run: AsyncExecute) -> Any:
        """A task with these options: ``priority``, ``queue_name``, ``backend``."""
        return _django_task()(**self.options)(execute_run)


@cache
def _django_task() -> Any:
    try:
        return import_string("django.tasks.task")
    except ImportError:
        return import_string("django_tasks.task")


def get_runner() -> Runner | None:
    """The runner of the setting ``RUNNER``; None: this process executes its runs itself.

    Raises:
        ImportError: there is no such class.
    """
    return None if settings.RUNNER is None else _made(settings.RUNNER)


@cache
def _made(path: str) -> Runner:
    runner: Runner = imported(path)()
    return runner
