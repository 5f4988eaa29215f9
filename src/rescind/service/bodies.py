"""What requests and answers hold: the source of the OpenAPI file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST_ITEMS = 5_000
MOST_ITEM = 200
"""Characters of an item's id."""
MOST_LIST = 100
KEY = r"^[A-Za-z0-9_.~-]{16,64}$"

Item = Annotated[str, StringConstraints(min_length=1, max_length=MOST_ITEM)]
Items = Annotated[list[Item], Field(min_length=1, max_length=MOST_ITEMS)]
Name = Annotated[str, StringConstraints(max_length=100)]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=500)]
IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        pattern=KEY,
        description="16 to 64 letters and digits. The same key again gets the recorded answer.",
    ),
]
IfMatch = Annotated[str | None, Header(alias="If-Match", description="The ETag of the loans.")]
RequestId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{32}$")]
JobId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{16}$")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next` of the page before.")]
PageSize = Annotated[int, Query(alias="limit", ge=1, le=5_000)]
OpenOnly = Annotated[bool, Query(alias="open", description="Leave out what is done.")]


class Body(BaseModel):
    """A request's body: an unknown field is an error, not a wish."""

    model_config = ConfigDict(extra="forbid")


class ProblemBody(BaseModel):
    """RFC 9457, with what to do next."""

    type: str
    title: str
    status: int
    detail: str
    next: str
    item: str | None = None


class AgentError(BaseModel):
    """Data Rights Protocol 3.06."""

    code: str
    message: str
    fatal: bool = False


RecoveryCode = Annotated[str, StringConstraints(min_length=10, max_length=60)]


class BeginAccount(Body):
    """Begin to register a passkey; with an invitation, or with a recovery code, not with both."""

    invitation: Annotated[str, StringConstraints(max_length=100)] | None = None
    code: RecoveryCode | None = None


class Ceremony(Body):
    """A browser's answer to a challenge (`PublicKeyCredential.toJSON()`)."""

    ceremony: Annotated[str, StringConstraints(max_length=100)]
    credential: dict[str, Any]
    name: Name = ""


class Begun(BaseModel):
    """A ceremony: what `navigator.credentials` gets."""

    ceremony: str
    options: dict[str, Any]


class Joined(BaseModel):
    """A new account, or a passkey more."""

    role: str
    recovery_codes: list[str]
    codes_left: int | None = None


class RecoveryCodes(BaseModel):
    """Ten codes; each opens the account once."""

    recovery_codes: list[str]


class SignedIn(BaseModel):
    """A session, in the cookie `__Host-rescind`."""

    role: str
    codes_left: int | None = None


class Recover(Body):
    """Sign in with a recovery code."""

    code: RecoveryCode


class Lend(Body):
    """Items to lend."""

    items: Items


class Part(Body):
    """Items that one person keeps, and the weight of each pair of them: round(4096 / sqrt(n))."""

    items: Annotated[list[Item], Field(max_length=MOST_ITEMS)]
    weight: Annotated[int, Field(ge=0, le=4096, strict=True)]


class Difference(Body):
    """What the sum has of a browser (`minus`), and what it shall have (`plus`)."""

    device: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
    minus: Part
    plus: Part


class KeptPart(BaseModel):
    """What a browser keeps and has sent to the sum; `device` names the browser."""

    items: list[str]
    device: str | None


class Acknowledged(BaseModel):
    """A change as the log holds it, and what opens its entry. Keep it: nobody else has `opening`.

    `entry` is the byte 01 and the HMAC-SHA256, under `opening`, of the canonical JSON of `items`,
    `kind`, `seq` and `time` (sorted names, no blanks, UTF-8). A receipt states `leaf` as its log
    entry; `rescind verify RECEIPT --acknowledgement FILE` compares the whole answer with it.
    """

    model_config = ConfigDict(extra="allow")
    kind: str | None = None
    seq: int | None = None
    time: str | None = None
    entry: str | None = Field(None, description="Of the log: 33 bytes as hexadecimal digits.")
    leaf: int | None = Field(None, description="The index of the entry in the log, from 0.")
    opening: str | None = Field(None, description="32 secret bytes: show what `entry` is about.")
    items: list[str] | None = Field(
        None,
        description="Of a take-back: what it was about. An answer that is sent again has them only "
        "if the request named them.",
    )
    checkpoint: str | None = Field(
        None, description="Of a take-back: the log as it was signed with the answer."
    )


class Acknowledgement(BaseModel):
    """What a change made of what you lend or send; without `acknowledgement` nothing changed."""

    model_config = ConfigDict(extra="allow")
    acknowledgement: Acknowledged | None = None


class TakeBack(Body):
    """What to take back: `items`, or "everything". `leave` is always everything, so it needs none.

    Leaving and "everything" need a fresh confirmation. `receipt_key` opens the exact numbers of the
    receipt (`rescind verify --event-key`): 32 random bytes as 64 hexadecimal digits that you keep.
    Without it, the answer has one, once.
    """

    kind: Literal["unshare", "erase", "leave"]
    items: Items | Literal["everything"] | None = None
    receipt_key: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None = None


class Status(BaseModel):
    """Where a request stands; states are those of the Data Rights Protocol."""

    model_config = ConfigDict(extra="allow")
    request_id: str
    status: Literal["open", "in_progress", "fulfilled", "revoked", "denied", "expired"]
    reason: str | None = None
    received_at: str | None = None
    expected_by: str | None = None
    processing_details: str | None = None
    acknowledgement: Acknowledged | None = None


class Page(BaseModel):
    """A part of a list, and where the next begins."""

    model_config = ConfigDict(extra="allow")
    next: str | None = None


class Anything(BaseModel):
    """Counts and times."""

    model_config = ConfigDict(extra="allow")


class Keys(BaseModel):
    """Public keys."""

    receipts: str
    log: str
    witnesses: list[str]


class Extend(Body):
    """More time for a request, with the reason that its person is told."""

    days: Annotated[int, Field(ge=1, le=60)]
    reason: Reason


class NewJob(Body):
    """A generation: a recipe on the loans as they are now."""

    recipe: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None


class Serving(Body):
    """What is served: a generation that is ready, or the release (null)."""

    generation: Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")] | None


class NewWitness(Body):
    """A witness of the log, by its key (NAME+ID+KEY, as `rescind witness` prints it)."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    url: Annotated[str, StringConstraints(max_length=400)] | None = None


class Quarantine(Body):
    """Why somebody's loans leave the sum."""

    reason: Reason


class NewAgent(Body):
    """An agent, as its directory describes it."""

    id: Annotated[str, StringConstraints(pattern="^[A-Z_]{1,64}$")]
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    verify_key: Annotated[str, StringConstraints(pattern="^[0-9A-Fa-f]{64}$")]


class NewToken(Body):
    """A token for a script."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    scope: Annotated[list[str], Field(min_length=1, max_length=20)]
    days: Annotated[int, Field(ge=1, le=366)] = 30


class Token(BaseModel):
    """A new token. It is shown once."""

    token: str
    expires: str
