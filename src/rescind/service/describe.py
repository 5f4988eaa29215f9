"""Write openapi.json beside this file: `python -m rescind.service.describe`."""

from __future__ import annotations

from rescind.core.files import write_atomically
from rescind.service.app import description
from rescind.service.plain import DESCRIPTION, text_of

if __name__ == "__main__":
    write_atomically(DESCRIPTION, text_of(description()).encode())
