"""Assembly: all routes behind their guard, what runs beside them, start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from rescind.service import (
    agents,
    chores,
    entry,
    log_files,
    operator,
    pages,
    people,
    plain,
    witnesses,
)
from rescind.service.bodies import ProblemBody
from rescind.service.callers import COOKIE
from rescind.service.context import Service
from rescind.service.doors import Doors
from rescind.service.guard import Frame, GuardedRoute, check_routes, handle_problems
from rescind.service.policy import POLICY, Role, Rule, Settings

if TYPE_CHECKING:
    from rescind.ledger.book import Ledger

ROUTERS = (
    pages.router,
    plain.router,
    entry.router,
    people.router,
    agents.router,
    operator.router,
    witnesses.router,
    log_files.router,
)
SCHEMES = {
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "Of somebody who signed in with a passkey. Changes also need Origin.",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "For scripts of operators, with scopes, and for agents. Never a person.",
    },
}


def create_app(ledger: Ledger, settings: Settings | None = None) -> FastAPI:
    """Return the service on an open ledger. A route without a policy is an error here."""
    service = Service(ledger, settings or Settings())
    app = FastAPI(openapi_url=None, redirect_slashes=False, lifespan=_lifespan)
    app.state.service = service
    for router in (*ROUTERS, _log_routes(service.log)):
        app.router.routes.extend(router.routes)
    check_routes(app)
    handle_problems(app)
    hot = [one for one in app.routes if isinstance(one, GuardedRoute) and one.plainly]
    app.add_middleware(Frame, service=service, hot=hot)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.events.start()
    tasks = [asyncio.create_task(one) for one in chores.all_of(service)]
    try:
        yield
    finally:
        service.ending = True
        service.ledger.roster.stop()
        service.events.stop()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(chores.tell_unfinished, service)


def _log_routes(log: Any) -> Doors:
    doors = Doors()
    for route in log_files.log_routes(log).routes:
        if isinstance(route, APIRoute):
            media = "text/plain" if "{" not in route.path else "application/octet-stream"
            doors.at(f"GET {route.path}", media=media)(route.endpoint)
    return doors


def description() -> dict[str, Any]:
    """Return the OpenAPI description of all routes; it needs no ledger."""
    routes = [route for router in (*ROUTERS, _log_routes(None)) for route in router.routes]
    found = get_openapi(
        title="rescind",
        version="1",
        description="Lend records, get recommendations, take records back, get receipts.",
        routes=routes,
    )
    found["components"]["schemas"][ProblemBody.__name__] = ProblemBody.model_json_schema()
    found["components"]["securitySchemes"] = SCHEMES
    for path, methods in found["paths"].items():
        for method, told in methods.items():
            told["security"] = _security(POLICY[f"{method.upper()} {path}"])
    return found


def _security(rule: Rule) -> list[dict[str, list[str]]]:
    """Return by what a caller of a route is known; an empty list: it is open to everybody."""
    if Role.ANONYMOUS in rule.who:
        return []
    by = {"session": rule.who - {Role.AGENT}, "token": rule.who - {Role.PERSON}}
    return [{name: list[str]()} for name, who in by.items() if who]
