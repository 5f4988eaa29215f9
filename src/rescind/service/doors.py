"""How routes are made: a line of the policy, a description for OpenAPI, and the guard before it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rescind.ledger.batch import Once
from rescind.service.answers import refusals, reply
from rescind.service.bodies import Cursor, IdempotencyKey, PageSize
from rescind.service.callers import Caller
from rescind.service.context import Service
from rescind.service.guard import PLAINLY, GuardedRoute, Plainly
from rescind.service.problems import Problem, of_validation

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Doors(APIRouter):
    """Routes of one kind of caller."""

    def __init__(self) -> None:
        super().__init__(route_class=GuardedRoute)

    def at(
        self,
        line: str,
        model: type[BaseModel] | None = None,
        status: int = 200,
        media: str = "application/json",
        more: dict[int | str, dict[str, Any]] | None = None,
        shown: bool = True,
        extra: dict[str, Any] | None = None,
        plainly: Plainly | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a handler for a line of the policy, such as "GET /v1/me".

        plainly: carries out requests that are as they should be; None from it: the handler looks
        """
        method, path = line.split(" ")
        bare = path.replace(":path}", "}")
        described: dict[int | str, dict[str, Any]] = {**refusals(method, bare), **(more or {})}
        if model is None:
            described[status] = {"description": "Done.", "content": {media: {}}}

        def register(handler: Handler) -> Handler:
            setattr(handler, PLAINLY, plainly)
            described_body = extra is not None or "body" in inspect.signature(handler).parameters
            empty = method != "GET" and not described_body
            self.add_api_route(
                path,
                handler,
                methods=[method],
                response_model=model,
                status_code=status,
                response_class=Response if model is None else JSONResponse,
                responses=described,
                include_in_schema=shown,
                openapi_extra=extra,
                dependencies=[Depends(_body_is_json)] if empty else None,
            )
            return handler

        return register


async def _body_is_json(request: Request) -> None:
    """Refuse a body that cannot be read also where nothing is asked for: it was meant to say so."""
    try:
        json.loads(await request.body() or b"{}")
    except ValueError:
        raise of_validation([{"loc": ("body",), "msg": "JSON decode error"}]) from None


async def _service(request: Request) -> Service:  # async: a plain function costs a thread
    service: Service = request.app.state.service
    return service


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


async def once(request: Request, key: IdempotencyKey) -> Once:
    """Return what makes this request have one effect: its key, and what it asks for."""
    asked = f"{request.method} {request.scope['path']}\n".encode() + await request.body()
    return Once(key, asked)


@dataclass(frozen=True)
class Part:
    """Which part of a list somebody wants."""

    first: int
    size: int

    @property
    def last(self) -> int:
        return self.first + self.size

    def reply(self, name: str, rows: list[Any], **more: Any) -> Response:
        """Answer with the rows of this part; one row more than that says that others follow."""
        follows = str(self.last) if len(rows) > self.size else None
        return reply({name: rows[: self.size], "next": follows, **more})


def parts_of(usual: int) -> Any:
    """Return the dependency of a route that lists so many rows at a time, unless asked."""

    async def part(cursor: Cursor = None, size: PageSize = usual) -> Part:
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise Problem(400, "The cursor is not one of ours.", "Use `next` of the page before.")
        return Part(int(cursor or 0), size)

    return Depends(part)


TheService = Annotated[Service, Depends(_service)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheOnce = Annotated[Once, Depends(once)]
ThePart = Annotated[Part, parts_of(100)]
