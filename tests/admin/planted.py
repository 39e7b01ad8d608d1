"""The admin's addresses, and a thread with something planted wherever users and agents write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from agui_django.models import Attachment, Feedback, Run, StateVersion
from agui_django.protocol.codec import encode
from tests.api.conftest import Rows

RUN, THREAD, INBOX = ("/admin/agui_django/run/", "/admin/agui_django/thread/", "/admin/agui_django/interrupt/")

#: The name of an address -> the address, and the sets of permissions of which one is needed; none: nobody.
ADDRESSES: dict[str, tuple[str, list[set[str]]]] = {
    "run_changelist": (RUN, [{"view_run"}]),
    "run_change": (f"{RUN}<run>/change/", [{"view_run"}]),
    "run_history": (f"{RUN}<run>/history/", [{"view_run"}]),
    "run_add": (f"{RUN}add/", []),
    "run_delete": (f"{RUN}<run>/delete/", []),
    "run_cancel": (f"{RUN}cancel/?run=<run>", [{"view_run", "cancel_run"}]),
    "run_status": (f"{RUN}status/?run=<run>", [{"view_run"}]),
    "run_review": (f"{RUN}review/?run=<run>", [{"view_run", "review_run"}]),
    "run_export": (f"{RUN}export/?run=<run>", [{"view_run", "export"}]),
    "run_zone": (f"{RUN}zone/", [set()]),
    "run_panel": (f"{RUN}panel/errors/", [{"view_run"}]),
    "run_live": (f"{RUN}<run>/live/", [{"view_run"}]),
    "run_events": (f"{RUN}<run>/events/", [{"view_run"}]),
    "run_download": (f"{RUN}<run>/events.ndjson", [{"view_run", "view_content", "export"}]),
    "run_part": (f"{RUN}<run>/input.txt", [{"view_run", "view_content"}]),
    "run_message": (f"{RUN}message/<message>/", [{"view_content"}]),
    "run_file": (f"{RUN}file/<file>/", [{"view_content"}]),
    "thread_changelist": (THREAD, [{"view_thread"}]),
    "thread_change": (f"{THREAD}<thread>/change/", [{"view_thread"}]),
    "thread_history": (f"{THREAD}<thread>/history/", [{"view_thread"}]),
    "thread_add": (f"{THREAD}add/", []),
    "thread_delete": (f"{THREAD}<thread>/delete/", []),
    "thread_prune": (f"{THREAD}prune/", [{"view_thread", "prune"}]),
    "thread_state": (f"{THREAD}<thread>/state/", [{"view_thread", "view_content", "edit_state"}]),
    "thread_archive": (f"{THREAD}<thread>/archive/", [{"view_thread", "change_thread"}]),
    "thread_restore": (f"{THREAD}<thread>/restore/", [{"view_thread", "change_thread"}]),
    "thread_export": (f"{THREAD}<thread>/export/", [{"view_thread", "view_content", "export"}]),
    "thread_remove": (f"{THREAD}<thread>/remove/", [{"view_thread", "delete_thread"}]),
    "interrupt_changelist": (INBOX, [{"view_interrupt"}, {"answer_interrupt"}]),
    "interrupt_change": (f"{INBOX}<interrupt>/change/", [{"view_interrupt"}, {"answer_interrupt"}]),
    "interrupt_history": (f"{INBOX}<interrupt>/history/", [{"view_interrupt"}, {"answer_interrupt"}]),
    "interrupt_add": (f"{INBOX}add/", []),
    "interrupt_delete": (f"{INBOX}<interrupt>/delete/", []),
    "interrupt_dismiss": (f"{INBOX}dismiss/?q=<interrupt>", [{"answer_interrupt"}]),
}  # fmt: skip


class Planted:
    """A thread with a secret in every place that a user or an agent fills."""

    def __init__(self, owner: Any, plant: Callable[[str], str]) -> None:
        rows = Rows(
            owner, title=plant("title"), last_words=plant("last-words"), metadata=encode({"a": plant("metadata")}),
            state=encode({plant("state-key"): plant("state")}),
        )  # fmt: skip
        self.thread = rows.thread
        events = [
            {"type": "RUN_STARTED", "threadId": "t1", "runId": "r1", "timestamp": 1000, "input": plant("e-input")},
            {"type": "STEP_STARTED", "stepName": plant("e-step"), "timestamp": 1000},
            {
                "type": "TEXT_MESSAGE_START", "messageId": "m2", "role": "assistant", "name": plant("e-name"),
                "timestamp": 1001,
            },
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m2", "delta": plant("e-text")},
            {"type": "REASONING_MESSAGE_CONTENT", "messageId": "m4", "delta": plant("e-reasoning")},
            {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "lookup", "timestamp": 1002},
            {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": plant("e-args")},
            {
                "type": "TOOL_CALL_RESULT", "toolCallId": "c1", "messageId": "m3", "content": plant("e-result"),
                "timestamp": 1003,
            },
            {"type": "STATE_SNAPSHOT", "snapshot": {plant("e-state-key"): plant("e-state")}, "timestamp": 1004},
            {"type": "STATE_DELTA", "delta": [{"op": "add", "path": plant("e-path"), "value": plant("e-patch")}]},
            {"type": "CUSTOM", "name": plant("e-custom"), "value": plant("e-value"), "metadata": plant("e-meta")},
            {
                "type": "ACTIVITY_SNAPSHOT", "messageId": "m5", "activityType": plant("e-activity"),
                "content": {"a": plant("e-card")},
            },
            {"type": "SUBAGENT_STARTED", "subagentRunId": "s1", "name": plant("e-subagent"), "timestamp": 1005},
            {"type": "RAW", "event": plant("e-raw"), "source": plant("e-source")},
            {"type": "RUN_ERROR", "message": plant("e-error"), "timestamp": 1006},
        ]  # fmt: skip
        run = self.run = rows.run(
            *events, status="failed", error_code="tool_error", error_reference="a1f3a1f3", error_text=plant("error"),
            traceback=plant("traceback"), review_note=plant("note"),
            reviewed_by=owner, reviewed_at=timezone.now(), outcome=encode({"a": plant("outcome")}), duration_ms=6,
            result=encode(plant("result")), extra=encode({"a": plant("extra")}),
            usage=encode([{"model": plant("usage")}]),
        )  # fmt: skip
        Run.objects.filter(pk=run.pk).update(input=encode({"forwardedProps": {"a": plant("input")}}))
        self.file = Attachment.objects.create(
            thread=rows.thread, user=owner, name="none", title=plant("file"), media_type="text/html", size=1, digest="x"
        )
        part = {"type": "document", "source": {"type": "url", "value": f"/agui/attachments/{self.file.pk}",
                "mimeType": "text/html"}, "metadata": {"filename": plant("part")}}  # fmt: skip
        self.message = rows.message("m1", plant("user"), run=run)
        parts = [{"type": "text", "text": plant("text-part")}, part]
        rows.message("m1b", plant("parts"), run=run, wire=encode({"id": "m1b", "role": "user", "content": parts}))
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "lookup", "arguments": encode({"a": plant("args")})},
        }
        wire = {"id": "m2", "role": "assistant", "content": plant("assistant"), "toolCalls": [call]}
        rows.message("m2", "", "assistant", run=run, wire=encode(wire))
        tool = {"id": "m3", "role": "tool", "toolCallId": "c1", "content": plant("tool")}
        rows.message("m3", "", "tool", run=run, wire=encode(tool))
        rows.message("m4", plant("reasoning"), "reasoning", run=run)
        activity = {"id": "m5", "role": "activity", "activityType": "card", "content": {"a": plant("activity")}}
        rows.message("m5", "", "activity", run=run, wire=encode(activity))
        large = plant("large") + "x" * 70_000
        rows.message("m6", large, run=run)
        gone = rows.message("m7", plant("superseded"), run=run)
        type(gone).objects.filter(pk=gone.pk).update(superseded_by=run, behind=self.message.pk)
        for number, state in enumerate((plant("version"), plant("version-after")), start=2):
            StateVersion.objects.create(
                thread=rows.thread, run=run, version=number, state=encode({"a": state}), origin="agent"
            )
        Feedback.objects.create(thread=rows.thread, message=self.message, user=owner, rating=1, text=plant("feedback"))
        self.interrupt = rows.interrupt(
            run, message=plant("question"), tool_call_id="c1", metadata=encode({"a": plant("q-metadata")}),
            response_schema=encode({"type": "object", "properties": {
                plant("q-key"): {"title": plant("q-title")},
                "tags": {"type": "array", "items": {"type": "string"}, "default": ["<b>"]},
            }}),
            draft=encode({"payload": plant("draft")}),
        )  # fmt: skip
        self.answered = rows.interrupt(run, "i2", status="resolved", response=encode({"payload": plant("answer")}),
                                       message=plant("answered"))  # fmt: skip

    def at(self, address: str) -> str:
        values = {"run": self.run.pk, "thread": self.thread.pk, "message": self.message.pk, "file": self.file.pk,
                  "interrupt": self.interrupt.pk}  # fmt: skip
        return re.sub("<([a-z]+)>", lambda found: str(values[found[1]]), address)

    def addresses(self) -> list[str]:
        """Every address that is read, with the variants that show something else."""
        plain = [self.at(address) for address, _needed in ADDRESSES.values()]
        return [
            *plain, f"{RUN}?window=all", f"{RUN}?q=SECRET", f"{RUN}?q=a1f3a1f3", f"{THREAD}?q=SECRET",
            f"{THREAD}?window=all", f"{RUN}{self.run.pk}/change/?superseded=1",
            f"{THREAD}{self.thread.pk}/change/?superseded=1", f"{RUN}?reviewed=yes",
            f"{RUN}{self.run.pk}/change/?_changelist_filters=q%3DSECRET",
            f"{INBOX}?state=answered", f"{INBOX}{self.answered.pk}/change/", f"{RUN}{self.run.pk}/events/?type=CUSTOM",
            "/admin/", "/admin/agui_django/",
            "/admin/autocomplete/?app_label=agui_django&model_name=run&field_name=thread&term=SECRET",
        ]  # fmt: skip


#: What does something where it becomes markup, or is executed.
HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))",
    "![x](http://evil.test/x.png)",
    "<svg onload=alert(1)>", "</textarea><script>alert(1)</script>", "</pre><script>alert(1)</script>",
    "<style>*{display:none}</style>", "[x](/admin/logout/)",
    "<a href='data:text/html,<script>alert(1)</script>'>x</a>",
    "{{ 7|add:7 }}{% csrf_token %}", "\"><script>alert(1)</script>", "' onmouseover='alert(1)",
    "<iframe src=//evil.test>",
    "[x](JaVaScRiPt:alert(1))", "<!--<script>-->", "[x]: javascript:alert(1)\n[x]",
    "<http://evil.test/\"onclick=alert(1)>",
]  # fmt: skip
