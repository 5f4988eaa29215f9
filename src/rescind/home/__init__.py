"""The ledger of a home: what people asked, who left, who has a copy, what was done about it."""

from rescind.home.ledger import Ledger
from rescind.home.request import KINDS, STEPS, Copy, Refused, Request

__all__ = ["KINDS", "STEPS", "Copy", "Ledger", "Refused", "Request"]
