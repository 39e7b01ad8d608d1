"""Which cases run now, and which part of the project the others wait for.

`test_every_case_is_placed` holds the tables to the file. `PARTLY` names members of a case's ``expected`` that wait for
a later part while the rest of the case already runs.
"""

from __future__ import annotations

PARTLY: dict[tuple[str, str], str] = {
    ("M06", "admin_page"): "D: the admin",
}
