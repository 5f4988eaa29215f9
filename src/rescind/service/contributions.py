"""What a browser keeps, counted in the sum if its person says so.

This service is one server, so it reads the records of a difference while it adds them up, and the
page says so. It keeps them sealed to subtract them again, and uses them for nothing else.
"""

from __future__ import annotations

from starlette.responses import Response

from rescind.ledger.contributing import Contribute, Part
from rescind.service import bodies
from rescind.service.answers import reply, told
from rescind.service.context import Service
from rescind.service.doors import Doors, TheCaller, TheOnce, TheService

router = Doors()


@router.at("GET /v1/me/contribution", bodies.KeptPart)
def kept_part(service: TheService, caller: TheCaller) -> Response:
    """List what your browser keeps and has sent to the sum, and which browser did."""
    part = service.ledger.reading.kept_part(caller.id)
    ids = service.ledger.catalogue.ids
    items = [ids[n] for n in part.items.tolist()]
    return reply({"items": items, "device": part.device.hex() or None})


@router.at(
    "POST /v1/me/contribution",
    bodies.Acknowledgement,
    201,
    more={200: {"description": "As it was."}},
)
async def contribute(
    body: bodies.Difference, asked: TheOnce, service: TheService, caller: TheCaller
) -> Response:
    """Replace what your browser keeps and has sent to the sum."""
    minus, plus = (_part(service, one) for one in (body.minus, body.plus))
    operation = Contribute(caller.id, bytes.fromhex(body.device), minus, plus)
    answer = await service.submit(operation, asked)
    service.changed(caller.id, "loans", answer)
    return told(answer)


def _part(service: Service, given: bodies.Part) -> Part:
    place = service.ledger.catalogue.index_of
    return Part(tuple(place(one) for one in given.items), given.weight)
