"""Signals a site may listen to. They are sent after the commit, in one of the app's threads, with `send_robust`.

A receiver must not wait for the run it hears of. One that raises is logged; nothing of the run changes.
"""

from __future__ import annotations

from django.dispatch import Signal

#: A run is claimed and about to call its agent. Arguments: ``run``, the `Run` row.
run_started = Signal()

#: A run has its terminal event; its messages, state and interrupts are rows. Arguments: ``run``, the `Run` row.
run_finished = Signal()

#: A run ended with a question. Arguments: ``interrupt``, the `Interrupt` row. Once per question, also for one that has
#: been answered meanwhile.
interrupt_opened = Signal()

#: A question was closed; ``interrupt.status`` says how: resolved, cancelled or expired. Arguments: ``interrupt``, the
#: `Interrupt` row. Once per question: an answer is told of when the run that carries it has acted or ended, as one that
#: fails before leaves its questions open.
interrupt_resolved = Signal()

#: A message entered a thread, from a client or from an agent. Arguments: ``message``, the `Message` row.
message_stored = Signal()
