"""A witness over HTTP: the server that a silo runs, and how a log asks it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rescind.errors import ConfigError, DataError, RescindError
from rescind.proof import reaching
from rescind.proof.log_folder import LogFolder
from rescind.proof.notes import LARGEST, Key, opened
from rescind.proof.pulling import WAIT
from rescind.proof.tlog import Tree
from rescind.proof.witness import SIZE_TYPE, Reply, Witness, bare, request_body

ROUTE = "/add-checkpoint"


def server(
    witness: Witness, host: str, port: int, tell: Callable[[str], None] = lambda _: None
) -> ThreadingHTTPServer:
    """Return a server that listens; call `serve_forever`. Port 0: any free one.

    tell: gets a line for each history that is refused
    """

    class Door(BaseHTTPRequestHandler):
        protocol_version, timeout = "HTTP/1.1", WAIT

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            right = len(length) < 9 and length.isdecimal() and int(length) <= LARGEST
            if self.path != ROUTE or not right:
                self.close_connection = True
                return self._send(Reply(404 if self.path != ROUTE else 400, "not understood\n"))
            reply = witness.add_checkpoint(self.rfile.read(int(length)))
            if reply.told:
                tell(reply.told)
            return self._send(reply)

        def _send(self, reply: Reply) -> None:
            body = reply.body.encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no line for each request."""

    try:
        return ThreadingHTTPServer((host, port), Door)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another --port."
        ) from None


def ask(url: str, witness: Key, log: LogFolder) -> int:
    """Send the log's checkpoint to a witness and keep its signature; return when it signed."""
    return log.cosigned(cosignature(url, witness, log.note, log.tree), witness)


def cosignature(url: str, witness: Key, note: str, tree: Tree, anywhere: bool = True) -> str:
    """Return a witness's line under a signed checkpoint, or raise `DataError`.

    The first request claims that the witness saw nothing yet; it answers with what it saw.
    note: of the log whose tree this is, which may have grown since
    anywhere: also at an address that is not public
    """
    point, _ = opened(note, ())
    note = bare(note)
    reply = _post(url, request_body(0, [], note), anywhere)
    if reply.status == 409 and reply.content_type == SIZE_TYPE:
        old = reply.body.strip()[:20]
        if not old.isdecimal() or int(old) > point.size:
            raise DataError(
                f"the witness has signed {old} entries and this log has {point.size}: it was "
                f"rolled back. Restore a newer copy."
            )
        path = tree.consistency(int(old), point.size)
        reply = _post(url, request_body(int(old), path, note), anywhere)
        if reply.status == 409:
            raise DataError(
                f"the witness refused: it has signed {old} entries of another history of this log, "
                f"or of a longer one. Ask again; else restore a copy that it has signed."
            )
    if reply.status != 200:
        said = "".join(c if c.isprintable() else " " for c in reply.body[:200]).strip()
        raise DataError(
            f"the witness refused ({reply.status}): {said}. It may be a second history."
        )
    if witness not in opened(note + reply.body, [witness])[1]:
        raise DataError(
            f"the answer is no signature of {witness.name} under this checkpoint. Check its key."
        )
    return reply.body


class Cosigning:
    """Asks witnesses of a log again and again, and keeps the newest checkpoint they signed.

    For a service: call `ask_all` from a thread of its own, every ten seconds.
    """

    def __init__(
        self,
        witnesses: Mapping[str, Key],
        newest: Callable[[], str],
        tree: Tree,
        by_name: Container[str] = (),
    ) -> None:
        """witnesses: their keys by address    newest: returns the log's signed checkpoint

        by_name: addresses that need not be public
        """
        self._by_name = by_name
        self._witnesses, self._newest, self._tree = dict(witnesses), newest, tree
        self._note = ""

    def ask_all(self) -> dict[str, str]:
        """Ask every witness once; return what went wrong, by address."""
        note, problems = self._newest(), dict[str, str]()
        lines = ""
        for url, key in self._witnesses.items():
            try:
                lines += cosignature(url, key, note, self._tree, url in self._by_name)
            except RescindError as error:
                problems[url] = str(error)
        if lines:
            self._note = note + lines
        return problems

    def note_with(self, leaf: int) -> str | None:
        """Return the newest cosigned checkpoint if it covers a leaf, else None."""
        note = self._note
        return note if note and opened(note, ())[0].size > leaf else None


def _post(url: str, body: bytes, anywhere: bool) -> Reply:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"'{url}' is not the address of a witness: expected http:// or https://.")
    try:
        answer = reaching.post(url.rstrip("/") + ROUTE, body, {}, WAIT, LARGEST, anywhere)
    except reaching.NotPublic as error:
        raise DataError(f"{error} Name it at the start: rescind serve --witness URL=KEY.") from None
    except reaching.Away as error:
        raise reaching.Away(f"{error} Is rescind witness running there?") from None
    return Reply(answer.status, answer.body.decode("utf-8", "replace"), answer.content_type)
