"""Which cases run now, and which part of the project the others wait for.

`test_every_case_is_placed` holds the tables to the file. `PARTLY` names members of a case's ``expected`` that wait for
a later part while the rest of the case already runs.
"""

from __future__ import annotations

PENDING: dict[str, str] = {
    "C01": "E: CopilotKit's runtime protocol",
}

PARTLY: dict[tuple[str, str], str] = {
    ("M06", "admin_page"): "D: the admin",
    ("M06", "rest_messages"): "C: the REST API",
    ("I03", "rest_open_interrupts"): "C: the REST API",
    ("C15", "rest_detail"): "C: the REST API",
    ("C15", "rest_messages"): "C: the REST API",
    ("C15", "rest_delete"): "C: the REST API",
}
