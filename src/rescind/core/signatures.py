"""Types of what the verbs of a method take and return."""

from __future__ import annotations

from collections.abc import Mapping

from rescind.core.state import Private
from rescind.core.update import Sum, Update

Sums = Mapping[str, Sum]
"""The sums of a round, by role."""
Sent = tuple[Update, Private]
"""What clients send, and their private values afterwards."""
Summed = tuple[Sum, Private]
"""The sum of what clients send, and their private values afterwards."""
