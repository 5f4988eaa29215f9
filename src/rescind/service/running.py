"""From options to a running service: where it listens, what it starts with, what it prints."""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescind.core.words import count_of
from rescind.errors import ConfigError
from rescind.ledger import outage
from rescind.ledger.book import Ledger
from rescind.ledger.catalogue import FILE as CATALOGUE
from rescind.ledger.catalogue import Catalogue
from rescind.ledger.keyfile import FILE as KEYS
from rescind.ledger.operators import Remove
from rescind.ledger.options import Options
from rescind.ledger.ownership import mirror_missing, mirror_of
from rescind.ledger.place import FILE as LEDGER
from rescind.ledger.release_worker import warm_up
from rescind.ledger.start import swap_in_use
from rescind.proof.notes import WITNESS, Key
from rescind.service import callers, demonstration, import_users
from rescind.service.app import create_app
from rescind.service.policy import ACCOUNTS, CHANGES, CONNECTIONS, Role, Settings, SignUp

if TYPE_CHECKING:
    from rescind.service.context import Service

TOKEN_DAYS = 90
DEMO_SCOPES = "read,release"
"""What the page "Use the API" needs; a demonstration prints such a token beside its link."""
STOP_SECONDS = 10
WAITING = 2048
Say = Callable[[str], None]
Progress = Callable[[str], AbstractContextManager[Any]]


def say_now(text: str) -> None:
    """Print a line at once: into a pipe or a journal Python would keep it until the end."""
    print(text, flush=True)


@dataclass(frozen=True)
class Doorway:
    """Where a service listens. Closed by default: any other address needs a reason."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: tuple[str, ...] = ()
    insecure: bool = False
    demo: bool = False
    accounts: int = ACCOUNTS
    changes: int = CHANGES
    connections: int = CONNECTIONS
    sign_up: SignUp = SignUp.OPEN

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both --tls-cert and --tls-key. Give both, or neither.")
        for path in filter(None, (self.tls_cert, self.tls_key)):
            if not path.is_file():
                raise ConfigError(f"{path} is not a file. Give the PEM files of a certificate.")
        if self.demo and (not self.local or self.behind_proxy or self.tls_cert):
            raise ConfigError(
                "--demo signs anybody in who has its link, so it listens on this machine only: "
                "leave out --host, --behind-proxy, --tls-cert and --tls-key."
            )
        if not (self.local or self.tls_cert or self.behind_proxy or self.insecure):
            raise ConfigError(
                f"{self.host} can be reached from elsewhere, and nothing is encrypted. Give "
                f"--tls-cert and --tls-key, or --behind-proxy NAME; or --insecure."
            )

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listening(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        found = socket.socket(family)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((self.host, self.port))
        except OSError as error:
            found.close()
            raise ConfigError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}. "
                f"End what listens there, or choose another --port."
            ) from None
        return found

    def settings(self, port: int, business: str) -> Settings:
        """Return what the doors need to know. Passkeys need a name: an address has none."""
        if self.behind_proxy:
            origin = f"https://{self.behind_proxy[0]}"
            hosts = (*self.behind_proxy, "localhost", "127.0.0.1")
        else:
            name = self.name or ("localhost" if self.local else self.host)
            scheme = "https" if self.tls_cert else "http"
            usual = {"https": 443, "http": 80}[scheme] == port
            origin = f"{scheme}://{name}" + ("" if usual else f":{port}")
            hosts = (name, "localhost", "127.0.0.1", "[::1]") if self.local else (name,)
        return Settings(
            origin=origin,
            hosts=tuple(dict.fromkeys(hosts)),
            demo=self.demo,
            insecure=self.insecure and not self.local,
            behind_proxy=bool(self.behind_proxy),
            business=business,
            accounts=self.accounts,
            changes=self.changes,
            connections=self.connections,
            sign_up=self.sign_up,
        )


@dataclass(frozen=True)
class Wanted:
    """What else a start shall do."""

    demo: str | None = None
    items: Path | None = None
    invite_operator: str | None = None
    invite_officer: str | None = None
    invite_people: int = 0
    make_token: str | None = None
    business: str = "RESCIND"
    witnesses: tuple[str, ...] = ()
    """URL=KEY of each; the key as text or a file."""
    users: str | None = None
    codes: Path | None = None
    remove: tuple[str, ...] = ()
    """KIND=NAME of each operator, agent or token that shall not come in any more."""

    def check(self) -> None:
        """Say what is wrong before anything is opened or made."""
        self.witnesses_found()
        self.removed()
        if self.make_token is not None:
            callers.scopes_of(self.make_token)
        if self.demo and (self.users is not None or self.items is not None):
            raise ConfigError("--demo brings people and items: leave --import and --items out.")
        if self.codes is not None and self.users is None:
            raise ConfigError("--codes is the file of an import: give --import NAME, too.")

    def removed(self) -> list[Remove]:
        for text in self.remove:
            if "=" not in text:
                raise ConfigError(f"'{text}' is not KIND=NAME, such as operator=Anna.")
        return [Remove(*text.split("=", 1)) for text in self.remove]

    def witnesses_found(self) -> list[tuple[str, Key]]:
        found = []
        for text in self.witnesses:
            url, _, key = text.partition("=")
            if not key:
                raise ConfigError(
                    f"'{text}' is not URL=KEY, such as http://silo-0:8017=witness-0.pub."
                )
            found.append((url, _witness_key(key)))
        return found


def _witness_key(text: str) -> Key:
    if "+" not in text:  # every key has one
        if not (path := Path(text)).is_file():
            raise ConfigError(
                f"there is no file {path} with the key of a witness. Give the line that rescind "
                f"witness prints, or a file that holds it."
            )
        text = path.read_text(encoding="utf-8", errors="replace")
    return Key.parse(text, WITNESS)


def run(
    state: Path,
    door: Doorway,
    wanted: Wanted,
    options: Options,
    database: str | None = None,
    keys_mirror: Path | None = None,
    say: Say = say_now,
    progress: Progress = nullcontext,
) -> None:
    """Open the ledger, fill it if asked to, and serve until a signal comes.

    progress: shows what goes on (`core.doing`) while users are brought in
    """
    wanted.check()
    if keys_mirror is not None and not keys_mirror.parent.is_dir():
        raise ConfigError(f"--keys-mirror: there is no folder {keys_mirror.parent}. Make it first.")
    import_users.check_begun(state, wanted.codes)
    people = demonstration.people_of(wanted.demo, say) if wanted.demo else None
    if wanted.users is not None:
        people = import_users.users_of(wanted.users, wanted.codes, say, wanted.items)
    with closing(door.listening()) as listening:
        if people is None:
            catalogue = _catalogue(state, wanted.items, keys_mirror, say)
        else:  # a service that has items keeps them, also if it refuses the people
            kept = wanted.users and not wanted.items and (state / CATALOGUE).exists()
            catalogue = None if kept else people.catalogue
        ledger = Ledger.open(
            state, catalogue=catalogue, database=database, options=options, keys_mirror=keys_mirror
        )
        with closing(ledger):
            # Before people come in, that none are here would read as if the import had failed.
            begins = people is not None and not ledger.report.people
            if found := ledger.report.notes.strip() if begins else str(ledger.report):
                say(found)
            if missing := mirror_missing(state, mirror_of(state, keys_mirror)):
                say(f"note: {missing}")
            if swap_in_use():
                say("note: swap is on, so memory with loans may be written to a disk. Turn it off.")
            _make_ready(ledger, wanted, people, say, progress)
            settings = door.settings(listening.getsockname()[1], wanted.business)
            _serve(ledger, settings, door, wanted, listening, say)


@outage.told_at_a_start()
def _make_ready(
    ledger: Ledger,
    wanted: Wanted,
    people: demonstration.People | None,
    say: Say,
    progress: Progress,
) -> None:
    """Bring and remove what is wanted, then compile."""
    if wanted.users is None:
        import_users.check_complete(ledger)
    if people is not None and wanted.users and wanted.codes:
        import_users.bring(ledger, wanted.users, people, wanted.codes, say, progress)
    elif people is not None:
        demonstration.fill(ledger, people, say)
    for one in wanted.removed():
        count = ledger.submit(one).result().body["removed"]
        say(f"removed {one.kind} {one.name} ({count}).")
    say("getting ready: a minute if this version has not compiled here before.")
    warm_up(type(ledger.live), ledger.options, ledger.releases.form)
    if note := release_missing(ledger):
        say(note)


def _catalogue(state: Path, items: Path | None, mirror: Path | None, say: Say) -> Catalogue | None:
    """Read the items at first, and when some are new; else the folder or the ledger has them."""
    if items is None:
        there = [state / CATALOGUE, state / LEDGER, state / KEYS, *([mirror] if mirror else [])]
        if not any(path.exists() for path in there):
            raise ConfigError(
                f"{state} is new, and a service needs items. Give --items FILE.csv (columns id, "
                f"title), or --demo ml-100k."
            )
        return None
    listed = import_users.items_of(items)
    if not (state / CATALOGUE).exists():
        return listed
    known = Catalogue.load(state)
    found = known.with_items(listed)
    if added := len(found) - len(known):
        say(f"{count_of(added, 'new item')}. Lists have them from the next release on.")
    return found


def _serve(
    ledger: Ledger,
    settings: Settings,
    door: Doorway,
    wanted: Wanted,
    listening: socket.socket,
    say: Say,
) -> None:
    from rescind.service import connections  # with uvicorn: nothing else waits for it

    app = create_app(ledger, settings)
    for url, key in wanted.witnesses_found():
        app.state.service.log.witnesses.admit(key, url, by_name=True)
    server = connections.server(
        app,
        settings,
        ssl_certfile=door.tls_cert,
        ssl_keyfile=door.tls_key,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    if note := name_differs(app.state.service.log.name, settings):
        say(note)
    listening.listen(WAITING)  # whoever comes before the server runs waits
    say(f"rescind serves at {settings.origin}  (end with Ctrl-C)")
    _print_entrances(app.state.service, wanted, say)
    if threading.current_thread() is threading.main_thread():
        # The server ends in order and then raises the signal again: that must not end us before
        # everything is closed and told.
        signal.signal(signal.SIGTERM, lambda *_: None)
    with suppress(KeyboardInterrupt):  # the server has ended in order when this comes
        server.run(sockets=[listening])
    say("ended: everything that was acknowledged is on the disk.")


def release_missing(ledger: Ledger) -> str | None:
    """Return what to tell if people lend and no release is served, as after a restore."""
    if not ledger.releases.missing or not ledger.reading.overview()["lenders"]:
        return None
    why = ledger.releases.unread or "none was made yet, or a restore went back behind it"
    return (
        f"note: no release is served ({why}), so every list shows the first items of the "
        f"catalogue. Make one now: Release now on the operator's page, or POST "
        f"/v1/operator/releases."
    )


def name_differs(name: str, settings: Settings) -> str | None:
    """Return what to tell if the log is called otherwise than this address."""
    if name == settings.log_name:
        return None
    return (
        f"note: the log is called {name}, after the address of the first start, and this is "
        f"{settings.origin}. Its name can never change: receipts and witnesses know it."
    )


@outage.told_at_a_start()
def _print_entrances(service: Service, wanted: Wanted, say: Say) -> None:
    """Print links and tokens, each once; only their digests are kept."""
    ledger, origin = service.ledger, service.settings.origin
    operator = wanted.invite_operator
    if wanted.demo:
        secret, digest = callers.new_secret()
        service.entrances[digest] = demonstration.guest(ledger)
        say(f"sign in once, as one of the people: {origin}/v1/enter/{secret}")
        operator = operator or "operator"
    people = [("someone", Role.PERSON)] * wanted.invite_people
    for who, role in ((operator, Role.OPERATOR), (wanted.invite_officer, Role.OFFICER), *people):
        page, days = ("", 30) if role is Role.PERSON else ("operator", 2)
        if who:
            link = f"{origin}/{page}#invite={callers.invite(ledger, who, role)}"
            say(f"invitation for {who} ({role}), for {days} days: {link}")
    scopes = wanted.make_token or (DEMO_SCOPES if wanted.demo else None)
    if scopes:
        text = callers.make_token(ledger, scopes, "made at the start", TOKEN_DAYS)
        say(f"token for {scopes}, for {TOKEN_DAYS} days: {text}")
