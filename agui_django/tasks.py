"""The task that workers discover: Celery, procrastinate and Django's tasks all look into an app's module of this name.

Law: what it is follows from the setting ``RUNNER``; without one it is a plain function.
"""

from __future__ import annotations

from typing import Any

from agui_django.runs import runners, working


def _execute_run(run_uuid: str) -> None:
    """Execute a pending run to its end."""
    working.execute(run_uuid)


async def _aexecute_run(run_uuid: str) -> None:
    """Execute a pending run to its end, beside others."""
    await working.aexecute(run_uuid)


def _task() -> Any:
    # Queues find a task by the name of its function: both have the one under which it stands here.
    for function in (_execute_run, _aexecute_run):
        function.__name__ = function.__qualname__ = "execute_run"
    runner = runners.get_runner()
    return _execute_run if runner is None else runner.task(_execute_run, _aexecute_run)


execute_run: Any = _task()
