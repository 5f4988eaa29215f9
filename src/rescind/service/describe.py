"""Write what describes the routes: `python -m rescind.service.describe [docs/service.md]`.

openapi.json beside this file, and the table of routes between the marks of a page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rescind.core.files import write_atomically
from rescind.service.app import description
from rescind.service.plain import DESCRIPTION, text_of
from rescind.service.policy import POLICY, SCOPES, Role, verdict

BEGIN, END = "<!-- routes: python -m rescind.service.describe -->\n", "<!-- end of routes -->\n"


def routes() -> str:
    """Return a table of what each role gets, and from which routes."""
    paths = description()["paths"]
    roles = list(Role)
    alike: dict[str, list[str]] = {}
    for line, rule in POLICY.items():
        method, path = line.split(" ")
        if method.lower() not in paths.get(path, {}):  # not for callers of the API
            continue
        answers = [verdict(rule, role, SCOPES.get(role, frozenset())) for role in roles]
        cells = " | ".join("yes" if status == 200 else str(status) for status in answers)
        alike.setdefault(cells, []).append(f"`{line}`")
    head = [f"| {' | '.join(roles)} | routes |", "|---" * (len(roles) + 1) + "|"]
    rows = [f"| {cells} | {', '.join(same)} |" for cells, same in alike.items()]
    return "\n".join([*head, *rows]) + "\n"


def written(page: str) -> str:
    """Return a page with the table of now between its marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + routes() + END + rest.split(END)[1]


def main() -> None:
    write_atomically(DESCRIPTION, text_of(description()).encode())
    for name in sys.argv[1:]:
        path = Path(name)
        write_atomically(path, written(path.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main()
