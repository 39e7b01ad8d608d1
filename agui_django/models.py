"""What is stored: threads, runs, their logs, messages, state versions, interrupts, attachments and feedback.

Wire values are text (jsonb loses key order and large numbers); what is searched or listed has its own plain column.
No business logic here: every change goes through `runs.store.ThreadStore`.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

#: Ids are the client's text; longer ones are refused with 422 before they get here.
ID_LENGTH = 255


class ThreadQuerySet(models.QuerySet["Thread"]):
    """Threads."""

    def for_scope(self, scope: str) -> ThreadQuerySet:
        """Threads of one tenancy scope; every lookup by a client's id starts here."""
        return self.filter(scope=scope)


class Thread(models.Model):
    """A conversation: messages, the shared state and the runs that made them."""

    class TitledBy(models.TextChoices):
        """Who chose a title: what comes later replaces what comes earlier, never the reverse."""

        FIRST_WORDS = "", "first words"
        SITE = "site"
        PERSON = "person"

    scope = models.CharField(max_length=ID_LENGTH, help_text="Tenancy key; by default user:<pk>.")
    thread_id = models.CharField(max_length=ID_LENGTH, help_text="The id as the client gave it.")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="agui_threads"
    )
    agent = models.CharField(max_length=100, help_text="The agent of the latest run.")
    title = models.CharField(max_length=ID_LENGTH, blank=True)
    titled_by = models.CharField(
        max_length=8,
        choices=TitledBy.choices,
        default=TitledBy.FIRST_WORDS,
        db_default="",
        blank=True,
        help_text="Who chose the title; empty: it is the first user message.",
    )
    archived = models.BooleanField(default=False)
    state = models.TextField(default="{}", help_text="Wire text of the current shared state.")
    state_version = models.PositiveIntegerField(default=0)
    base_version = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="The state's version that the last run left, or the active one began with; empty: the current one.",
    )
    input_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    last_words = models.CharField(max_length=200, blank=True, help_text="Start of the latest text message.")
    metadata = models.TextField(default="{}")
    forked_from = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="forks",
        help_text="The thread whose history this one began with.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now)

    objects = ThreadQuerySet.as_manager()

    class Meta:
        """Identity is (scope, thread_id): a client's id means something only inside its own scope."""

        permissions: ClassVar = [
            ("edit_state", "Can edit the shared state of others' threads"),
            ("export", "Can export others' threads and logs"),
            ("prune", "Can delete old threads"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["scope", "thread_id"], name="agui_thread_scope_id"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["scope", "-updated_at"], name="agui_thread_scope"),
            models.Index(fields=["-updated_at"], name="agui_thread_updated"),
            models.Index(fields=["forked_from"], name="agui_thread_forked", condition=Q(forked_from__isnull=False)),
        ]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"thread {self.pk}"


class RunQuerySet(models.QuerySet["Run"]):
    """Runs."""

    def active(self) -> RunQuerySet:
        """Runs that hold their thread: at most one per thread."""
        return self.filter(status__in=Run.ACTIVE)

    def for_scope(self, scope: str) -> RunQuerySet:
        """Runs of one tenancy scope."""
        return self.filter(thread__scope=scope)

    def stale(self, before: datetime) -> RunQuerySet:
        """Active runs whose process gave no sign of life since ``before``."""
        return self.active().filter(heartbeat__lt=before)


class Run(models.Model):
    """One run of an agent on a thread; its events are `RunEvents`."""

    class Status(models.TextChoices):
        """Where a run is in its life."""

        QUEUED = "queued"
        PENDING = "pending"
        RUNNING = "running"
        FINISHED = "finished"
        INTERRUPTED = "interrupted"
        CANCELLED = "cancelled"
        FAILED = "failed"

    ACTIVE: ClassVar = (Status.PENDING, Status.RUNNING)
    TERMINAL: ClassVar = (Status.FINISHED, Status.INTERRUPTED, Status.CANCELLED, Status.FAILED)
    #: Runs that used tokens whose cost is not known.
    NOT_PRICED: ClassVar = Q(cost_nanos=None) & (Q(input_tokens__gt=0) | Q(output_tokens__gt=0))

    uuid = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False, help_text="The run's address.")
    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="runs", db_index=False)  # see Meta
    run_id = models.CharField(max_length=ID_LENGTH, help_text="The id as the client gave it; not unique.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of the cleaned request: recognises a repeat.")
    agent = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="agui_runs"
    )
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="+",
        help_text="Who started it, where that is not the user it runs for.",
    )
    extra = models.TextField(default="{}", help_text="JSON of what AccessPolicy.run_context(request) gave.")
    language = models.CharField(max_length=20, blank=True)
    time_zone = models.CharField(max_length=64, blank=True)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.PENDING)
    claim = models.CharField(max_length=64, blank=True, help_text="Names the executing process: the fence.")
    transport = models.CharField(max_length=20, blank=True)
    protocol_version = models.CharField(max_length=20, blank=True, help_text="As declared by the client; empty: 0.x.")
    input = models.TextField(help_text="Wire text of the accepted input, without its messages and state.")
    outcome = models.TextField(blank=True, help_text="Wire text of the terminal event's outcome.")
    result = models.TextField(blank=True, help_text="Wire text of the terminal event's result.")
    turn = models.CharField(max_length=64, help_text="The turn this run belongs to: its first run's uuid as hex.")
    once = models.TextField(default="{}", help_text="Values of the turn's once keys; kept on the turn's first run.")
    error_code = models.CharField(max_length=100, blank=True)
    error_text = models.TextField(blank=True, help_text="Staff only.")
    error_reference = models.CharField(max_length=32, blank=True)
    traceback = models.TextField(blank=True, help_text="Staff only.")
    error_fingerprint = models.CharField(max_length=64, blank=True)
    error_place = models.CharField(
        max_length=ID_LENGTH,
        blank=True,
        default="",
        db_default="",
        help_text="Staff only: the exception's class and the innermost frame outside libraries.",
    )
    end_reason = models.CharField(max_length=40, blank=True, help_text="user, staff, disconnect, timeout, shutdown ...")
    usage = models.TextField(default="[]", help_text="Wire text of the terminal event's usage list.")
    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    model = models.CharField(
        max_length=ID_LENGTH,
        blank=True,
        default="",
        db_default="",
        help_text="The models of its usage, joined by ' + '.",
    )
    cost_nanos = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Billionths of the currency, fixed when the run closed; empty: not priced."
    )
    currency = models.CharField(max_length=3, blank=True, default="", db_default="", help_text="ISO 4217, of the cost.")
    priced_on = models.DateField(
        null=True, blank=True, help_text="Date of the oldest price in the cost; empty: the agent's own figure."
    )
    tool_calls = models.PositiveIntegerField(default=0)
    open_interrupts = models.PositiveIntegerField(default=0)
    last_seq = models.PositiveIntegerField(default=0, help_text="Number of the last event; exact once closed.")
    compacted = models.BooleanField(
        default=False, db_default=False, help_text="Deltas of its log were merged; numbers are as they were."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    first_event_ms = models.PositiveIntegerField(
        null=True, blank=True, help_text="Milliseconds from the start to the agent's first event."
    )
    duration_ms = models.PositiveBigIntegerField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    heartbeat = models.DateTimeField(default=timezone.now, help_text="Sign of life, by the database's clock.")
    cancel_requested = models.CharField(max_length=40, blank=True, help_text="The reason, once somebody asked.")
    base_version = models.PositiveIntegerField(
        null=True, blank=True, help_text="The state's version that the run before it left; empty: not known."
    )
    watched_at = models.DateTimeField(
        null=True, blank=True, help_text="When another process last had a watcher; only where ON_DISCONNECT is cancel."
    )
    resumed_run = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="resuming_runs",
        help_text="The interrupted run whose questions this one answers.",
    )
    reviewed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="+",
        help_text="Who of the staff looked into it.",
    )
    reviewed_at = models.DateTimeField(null=True, blank=True)
    review_note = models.TextField(blank=True, default="", db_default="", help_text="Staff only: what they found.")

    objects = RunQuerySet.as_manager()

    class Meta:
        """One active run per thread is a constraint, not a check: it holds across processes."""

        permissions: ClassVar = [
            ("view_content", "Can read what users and agents wrote"),
            ("view_traceback", "Can read tracebacks of failed runs"),
            ("cancel_run", "Can stop others' runs"),
            ("review_run", "Can mark runs as reviewed"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["thread"], condition=Q(status__in=["pending", "running"]), name="agui_run_one_active"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["thread", "-created_at"], name="agui_run_thread"),
            models.Index(fields=["thread", "run_id"], name="agui_run_id"),
            models.Index(fields=["-created_at"], name="agui_run_created"),
            models.Index(
                fields=["status", "heartbeat"],
                name="agui_run_status",
                condition=Q(status__in=["queued", "pending", "running"]),
            ),
            models.Index(fields=["error_reference"], name="agui_run_reference"),
            # What few runs have: an index of all of them would be written with each run for nothing.
            models.Index(fields=["actor"], name="agui_run_actor", condition=Q(actor__isnull=False)),
            models.Index(fields=["resumed_run"], name="agui_run_resumed", condition=Q(resumed_run__isnull=False)),
            models.Index(
                fields=["error_fingerprint", "-created_at"],
                name="agui_run_errors",
                condition=~Q(error_fingerprint=""),
            ),
            # The list of what failed, in any window; the few that did are few to write.
            models.Index(fields=["-created_at"], name="agui_run_failed", condition=Q(status="failed")),
            models.Index(fields=["-created_at"], name="agui_run_reviewed", condition=Q(reviewed_at__isnull=False)),
            models.Index(fields=["reviewed_by"], name="agui_run_reviewer", condition=Q(reviewed_by__isnull=False)),
        ]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"run {self.uuid}"

    @property
    def ended(self) -> bool:
        """Whether the run has its terminal event."""
        return self.status in self.TERMINAL

    @property
    def cost(self) -> Decimal | None:
        """What it cost, in units of `currency`; None: not priced."""
        return None if self.cost_nanos is None else Decimal(self.cost_nanos).scaleb(-9)


class RunEvents(models.Model):
    """A batch of consecutive events of one run: wire texts joined by newlines (JSON text holds none)."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events", db_index=False)  # see Meta
    first_seq = models.PositiveIntegerField()
    last_seq = models.PositiveIntegerField()
    text = models.TextField()
    plain = models.BooleanField(default=True, help_text="Every client may be sent these events unchanged.")

    class Meta:
        """The log's order is (run, first_seq); the constraint is the index that replays use."""

        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "first_seq"], name="agui_events_run_seq"),
        ]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"events {self.first_seq}-{self.last_seq} of {self.run_id}"


class MessageQuerySet(models.QuerySet["Message"]):
    """Messages."""

    def in_play(self) -> MessageQuerySet:
        """What the conversation consists of now, in order; superseded branches are left out."""
        return self.filter(superseded_by=None).order_by("order", "pk")


class Message(models.Model):
    """One message of a thread as wire text."""

    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="messages", db_index=False)  # see Meta
    message_id = models.CharField(max_length=ID_LENGTH)
    role = models.CharField(max_length=20)
    wire = models.TextField(help_text="Wire text of the whole message.")
    search_text = models.TextField(blank=True, help_text="The readable text of its content.")
    order = models.PositiveIntegerField(help_text="Place in the thread; grows, with gaps.")
    run = models.ForeignKey(
        Run,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="messages",
        help_text="The run that brought or made it.",
    )
    superseded_by = models.ForeignKey(
        Run,
        # Without the run it would be in play again, beside what replaced it.
        on_delete=models.RESTRICT,
        null=True,
        blank=True,
        db_index=False,
        related_name="superseded_messages",
        help_text="The run that took it out of play: a regenerate, an edit, a restore, or its agent's snapshot.",
    )
    behind = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        editable=False,
        help_text="Key of the message behind which its branch stands, 0 for the beginning; empty: in no branch.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = MessageQuerySet.as_manager()

    class Meta:
        """A message id is in play once per thread."""

        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["thread", "message_id"], condition=Q(superseded_by=None), name="agui_message_in_play"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["thread", "order"], name="agui_message_order"),
            models.Index(fields=["superseded_by"], name="agui_message_gone", condition=Q(superseded_by__isnull=False)),
        ]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"message {self.pk}"


class StateVersion(models.Model):
    """A version of a thread's shared state and who made it."""

    class Origin(models.TextChoices):
        """Who changed the state."""

        AGENT = "agent"
        CLIENT = "client"
        STAFF = "staff"

    thread = models.ForeignKey(
        Thread, on_delete=models.CASCADE, related_name="state_versions", db_index=False
    )  # see Meta
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, blank=True, related_name="state_versions")
    version = models.PositiveIntegerField()
    state = models.TextField()
    digest = models.CharField(
        max_length=64, blank=True, help_text="SHA-256 of the value: finds an equal version in one statement."
    )
    origin = models.CharField(max_length=10, choices=Origin.choices)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="+",
        help_text="Who edited it.",
    )
    edit = models.TextField(
        default="",
        db_default="",
        blank=True,
        help_text="What the active run has to take in: wire text of the state it was made on, and the patch.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        """Versions are numbered per thread."""

        constraints: ClassVar = [
            models.UniqueConstraint(fields=["thread", "version"], name="agui_state_version"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["thread", "digest"], name="agui_state_digest"),
            models.Index(fields=["user"], name="agui_state_user", condition=Q(user__isnull=False)),
        ]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"state version {self.version} of thread {self.thread_id}"


class InterruptQuerySet(models.QuerySet["Interrupt"]):
    """Interrupts."""

    def open(self, now: datetime | None = None) -> InterruptQuerySet:
        """Questions that wait for an answer; with ``now``, without those that have expired."""
        found = self.filter(status=Interrupt.Status.OPEN)
        return found if now is None else found.filter(Q(expires_at=None) | Q(expires_at__gt=now))


class Interrupt(models.Model):
    """A question that a run asked and ended with."""

    class Status(models.TextChoices):
        """Where a question is in its life."""

        OPEN = "open"
        RESOLVED = "resolved"
        CANCELLED = "cancelled"
        EXPIRED = "expired"

    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="interrupts")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="interrupts")
    interrupt_id = models.CharField(max_length=ID_LENGTH)
    key = models.CharField(max_length=ID_LENGTH, help_text="The agent's name for the question within its turn.")
    position = models.PositiveSmallIntegerField(default=0, help_text="Order within the run's outcome.")
    reason = models.CharField(max_length=ID_LENGTH)
    message = models.TextField(blank=True)
    tool_call_id = models.CharField(max_length=ID_LENGTH, blank=True)
    response_schema = models.TextField(blank=True, help_text="Wire text.")
    expires_at = models.DateTimeField(null=True, blank=True)
    wire = models.TextField(help_text="Wire text of the whole interrupt as the client was shown it.")
    metadata = models.TextField(blank=True, help_text="Wire text.")
    permission = models.CharField(max_length=ID_LENGTH, blank=True)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.OPEN)
    draft = models.TextField(
        blank=True, help_text="An answer kept until the others of its run are complete: see runs.drafts."
    )
    response = models.TextField(blank=True, help_text="Wire text of the resume entry that closed it.")
    answered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    answered_run = models.ForeignKey(
        Run,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="answers",
        help_text="The run that carries the answer.",
    )
    seen_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    seen_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    closed_at = models.DateTimeField(null=True, blank=True)

    objects = InterruptQuerySet.as_manager()

    class Meta:
        """A question's id is unique within the run that asked it."""

        permissions: ClassVar = [("answer_interrupt", "Can answer interrupts of others' threads")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "interrupt_id"], name="agui_interrupt_run_id"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["thread"], name="agui_interrupt_open", condition=Q(status="open")),
            # What expires next: the few questions with an end.
            models.Index(
                fields=["expires_at"],
                name="agui_interrupt_expiry",
                condition=Q(status="open", expires_at__isnull=False),
            ),
            models.Index(fields=["status", "created_at"], name="agui_interrupt_inbox"),
            models.Index(fields=["-created_at"], name="agui_interrupt_created"),
        ]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"interrupt {self.pk}"

    @property
    def expired(self) -> bool:
        """Whether it can no longer be answered."""
        return self.expires_at is not None and self.expires_at <= timezone.now()


class Attachment(models.Model):
    """A file of a message, kept in the site's file storage; the message's wire text refers to it by its address."""

    uuid = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False, help_text="The file's address.")
    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="attachments")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    name = models.CharField(max_length=ID_LENGTH, help_text="Where the storage keeps it.")
    title = models.CharField(max_length=ID_LENGTH, blank=True, help_text="The file name that the client gave.")
    media_type = models.CharField(max_length=ID_LENGTH)
    size = models.PositiveBigIntegerField(help_text="Bytes.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of the bytes.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        """The same bytes are kept once per thread."""

        constraints: ClassVar = [
            models.UniqueConstraint(fields=["thread", "digest", "media_type"], name="agui_attachment_once"),
        ]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"attachment {self.uuid}"


class Feedback(models.Model):
    """What a user thinks of a message."""

    class Rating(models.IntegerChoices):
        """A thumb."""

        DOWN = -1
        NONE = 0
        UP = 1

    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="feedback")
    message = models.ForeignKey(Message, on_delete=models.CASCADE, related_name="feedback")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    rating = models.SmallIntegerField(choices=Rating.choices, default=Rating.NONE)
    text = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        """One opinion per user and message; a new one replaces it."""

        constraints: ClassVar = [
            models.UniqueConstraint(fields=["message", "user"], name="agui_feedback_once"),
        ]
        indexes: ClassVar = [models.Index(fields=["-created_at"], name="agui_feedback_created")]

    def __str__(self) -> str:
        """Name the row in logs and lists; never with what users wrote."""
        return f"feedback {self.pk}"
