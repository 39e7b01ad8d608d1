"""Which rows a caller sees, and what they may do to them.

Law: rows of the caller's own scope, and with a model's permission those of every scope; what is not seen does not
exist, what is seen but not allowed is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db.models import Model, OuterRef, QuerySet, Subquery

from agui_django.access import AccessPolicy, Caller
from agui_django.models import Feedback, Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.errors import NotFound, PermissionRefused
from agui_django.runs.database import database_alias

M = TypeVar("M", bound=Model)

#: Where a model's scope stands.
SCOPES: Final[dict[type[Model], str]] = {
    Thread: "scope",
    Run: "thread__scope",
    RunEvents: "run__thread__scope",
    Message: "thread__scope",
    StateVersion: "thread__scope",
    Interrupt: "thread__scope",
    Feedback: "thread__scope",
}


def permission(action: str, model: type[Model]) -> str:
    """The name of a model's permission."""
    return f"agui_django.{action}_{model._meta.model_name}"


class Sight:
    """What one caller sees. Use in a database thread.

    Args:
        policy: the site's.
        caller: who asks.
    """

    def __init__(self, policy: AccessPolicy, caller: Caller) -> None:
        """Nothing is asked before rows are."""
        self.policy, self.caller = policy, caller
        #: Whether the site hides runs of a scope from some of its users.
        self.hides = type(policy).may_see is not AccessPolicy.may_see

    def beyond(self, action: str, *models: type[Model]) -> bool:
        """Whether the caller may do this to the rows of every scope."""
        return all(self.policy.beyond_scope(self.caller.user, permission(action, model)) for model in models)

    def rows(self, model: type[M]) -> QuerySet[M]:
        """The rows of a model that the caller sees."""
        rows: QuerySet[M] = model._default_manager.using(database_alias())
        return rows if self.beyond("view", model) else rows.filter(**{SCOPES[model]: self.caller.scope})

    def questions(self) -> QuerySet[Interrupt]:
        """The questions that the caller sees: who may answer one has to."""
        if self.beyond("answer", Interrupt):
            return Interrupt.objects.using(database_alias())
        return self.rows(Interrupt)

    # ---- one row ---------------------------------------------------------------------------------------------------

    def thread(self, pk: int, *models: type[Model]) -> Thread:
        """A thread, for what of it is asked.

        Args:
            pk: its key.
            models: those whose rows are asked for: who sees these of every thread sees this thread. None: the thread.

        Raises:
            NotFound: there is none, or it is somebody else's.
        """
        found = Thread.objects.using(database_alias()).filter(pk=pk).first()
        if found is None or not (self.owns(found) or self.beyond("view", *(models or (Thread,)))):
            raise NotFound
        if self.hides and self.owns(found) and self._hidden([found.pk]):
            raise NotFound
        return found

    def run(self, pk: UUID, *models: type[Model]) -> Run:
        """A run, with its thread; as `thread`."""
        runs = Run.objects.using(database_alias()).select_related("thread").defer("traceback", "thread__state")
        found = runs.filter(pk=pk).first()
        if found is None or not (self.owns(found.thread) or self.beyond("view", *(models or (Run,)))):
            raise NotFound
        if not self.shows(found):
            raise NotFound
        return found

    def one(self, rows: QuerySet[M], pk: Any) -> M:
        """A row that belongs to a thread, and perhaps to a run.

        Raises:
            NotFound: there is none, or it is somebody else's.
        """
        whole = rows.select_related("thread", "run").defer("thread__state", "run__input", "run__traceback")
        found: Any = whole.filter(pk=pk).first()
        if found is None or (found.run is not None and not self.shows(found.run, found.thread)):
            raise NotFound
        if self.hides and self.owns(found.thread) and self._hidden([found.thread_id]):
            raise NotFound
        row: M = found
        return row

    def demand(self, thread: Thread, action: str, model: type[Model] = Thread) -> None:
        """Let through who may do this to a thread that they see: its scope, and staff with the model's permission.

        Raises:
            PermissionRefused: they may not.
        """
        if not self.owns(thread) and not self.beyond(action, model):
            raise PermissionRefused

    # ---- what a site's policy hides --------------------------------------------------------------------------------

    def shows(self, run: Run, thread: Thread | None = None) -> bool:
        """Whether the policy lets the caller see a run of their scope."""
        return not self.owns(thread or run.thread) or self.policy.may_see(self.caller.user, run)

    def shown_threads(self, threads: list[Thread]) -> list[Thread]:
        """Those of a page whose latest run the caller may see."""
        if not self.hides:
            return threads
        hidden = self._hidden([thread.pk for thread in threads if self.owns(thread)])
        return [thread for thread in threads if thread.pk not in hidden]

    def shown_runs(self, runs: list[Run]) -> list[Run]:
        """Those of a page that the caller may see."""
        return [run for run in runs if self.shows(run)] if self.hides else runs

    def shown_of_runs(self, rows: list[M]) -> list[M]:
        """Those of a page of rows with ``run_id`` whose run the caller may see."""
        if not self.hides:
            return rows
        asked: Any = rows
        keys = {row.run_id for row in asked if row.run_id is not None}
        runs = Run.objects.using(database_alias()).select_related("thread").in_bulk(keys)
        return [row for row in asked if row.run_id not in runs or self.shows(runs[row.run_id])]

    def _hidden(self, threads: Iterable[int]) -> set[int]:
        latest = Run.objects.filter(thread=OuterRef("pk")).order_by("-created_at").values("pk")[:1]
        rows = Thread.objects.using(database_alias()).filter(pk__in=threads).annotate(latest=Subquery(latest))
        keys = {run: thread for thread, run in rows.values_list("pk", "latest") if run is not None}
        runs = Run.objects.using(database_alias()).select_related("thread").in_bulk(keys)
        return {keys[key] for key, run in runs.items() if not self.policy.may_see(self.caller.user, run)}

    def owns(self, thread: Thread) -> bool:
        """Whether a thread is of the caller's scope."""
        return thread.scope == self.caller.scope
