"""The task that workers discover: Celery, procrastinate and Django's tasks all look into an app's module of this name.

Law: what it is follows from the setting ``RUNNER``; without one it is a plain function.
"""

from __future__ import annotations

from typing import Any

from agui_django.runs import runners


def execute_run(run_uuid: str) -> None:
    """Execute a pending run to its end."""
    runners.execute(run_uuid)


_runner = runners.get_runner()
if _runner is not None:
    _task: Any = _runner.task(execute_run)
    globals()["execute_run"] = _task
