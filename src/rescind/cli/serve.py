"""`rescind serve`: run the service where people lend records and take them back."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from typer import Option

from rescind.service.policy import SignUp


def command(
    state: Annotated[
        Path, Option(help="Folder of the ledger and its keys; made the first time.")
    ] = Path("runs/service"),
    demo: Annotated[
        str | None,
        Option(metavar="DATASET", help="Fill a new service with people, such as ml-100k."),
    ] = None,
    items: Annotated[
        Path | None,
        Option(help="The first time: a CSV file of all that people may lend (columns id, title)."),
    ] = None,
    users: Annotated[
        str | None,
        Option("--import", metavar="NAME", help="The first time: users of imported data."),
    ] = None,
    codes: Annotated[
        Path | None, Option(help="With --import: a new file for the code of each user.")
    ] = None,
    database: Annotated[
        str | None, Option(metavar="URL", help="PostgreSQL. Default: SQLite in the folder.")
    ] = None,
    keys_mirror: Annotated[
        Path | None,
        Option(help="A second copy of the keys, on another disk; later starts find it."),
    ] = None,
    accept_lost_keys: Annotated[
        bool,
        Option(
            "--accept-lost-keys", help="Go on without keys.bin: every loan is dropped for good."
        ),
    ] = False,
    instant: Annotated[
        bool, Option("--instant", help="Changes show at once: demonstrations, trusted groups.")
    ] = False,
    people: Annotated[
        int, Option(min=1, help="People of the last release whose loans differ when one is due.")
    ] = 200,
    least_hours: Annotated[
        float, Option(min=0, help="Hours between two releases at the least.")
    ] = 24.0,
    hours: Annotated[
        float, Option(min=0, help="Hours until a release at the latest, of however few people.")
    ] = 336.0,
    noise: Annotated[
        float | None,
        Option(min=0, help="Noise on releases, in units of what one person can change."),
    ] = None,
    noise_releases: Annotated[
        int, Option(min=1, max=1000, help="With --noise: releases until its budget is spent.")
    ] = 365,
    noise_changes: Annotated[
        int, Option(min=1, help="With --noise: changes of one person that epsilon covers.")
    ] = 3,
    noise_delta: Annotated[float, Option(help="With --noise: delta of epsilon.")] = 1e-6,
    witness: Annotated[
        list[str] | None,
        Option(metavar="URL=KEY", help="Ask this witness to cosign the log; repeatable."),
    ] = None,
    cosign_wait: Annotated[
        float, Option(min=0, help="Seconds that a receipt's proof waits for witnesses.")
    ] = 30.0,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    name: Annotated[
        str | None, Option(help="Name by which browsers reach it, with TLS or --insecure.")
    ] = None,
    tls_cert: Annotated[Path | None, Option(help="Certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, Option(help="Its private key (PEM).")] = None,
    behind_proxy: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="A proxy does TLS under this name; repeatable."),
    ] = None,
    insecure: Annotated[
        bool, Option("--insecure", help="Listen elsewhere without TLS. Every page says so.")
    ] = False,
    accounts_per_hour: Annotated[
        int, Option(min=1, help="New accounts from one address (IPv6: one /64).")
    ] = 5,
    changes_per_day: Annotated[
        int, Option(min=1, help="Changes of one person; taking back goes on, slowly.")
    ] = 300,
    connections: Annotated[
        int, Option(min=8, help="Open at once; an eighth of them from one address.")
    ] = 1000,
    sign_up: Annotated[
        SignUp, Option(help="Who may make an account: anybody, or who was invited.")
    ] = SignUp.OPEN,
    invite_operator: Annotated[
        str | None, Option(metavar="WHO", help="Print an invitation for an operator.")
    ] = None,
    invite_officer: Annotated[
        str | None, Option(metavar="WHO", help="Print one for an officer: reads, extends.")
    ] = None,
    invite_people: Annotated[
        int, Option(min=0, help="Print so many invitations for people; each makes one account.")
    ] = 0,
    make_token: Annotated[
        str | None,
        Option(metavar="SCOPES", help="Print a token for scripts, such as read,extend."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        Option(metavar="KIND=NAME", help="Remove an operator, agent or token; repeatable."),
    ] = None,
    business: Annotated[str, Option(help="What agents call this service.")] = "RESCIND",
) -> None:
    """Run the service. It listens on this machine only, unless TLS or a proxy is given.

    The state folder holds everything: the ledger, its keys, the release in service.

    Examples: rescind serve --demo ml-100k --state runs/service-demo;
    rescind serve --state /var/lib/rescind --items films.csv --behind-proxy lend.example.org
    """
    from rescind.cli.progress import working
    from rescind.cli.stopping import interruptible
    from rescind.core.fast.kept_code import keep_in

    keep_in(state / "compiled")  # before any loop is read
    from rescind.ledger.options import Options
    from rescind.service.running import Doorway, Wanted, run

    where = (host, port, name, tls_cert, tls_key, tuple(behind_proxy or ()), insecure)
    bounds = (accounts_per_hour, changes_per_day, connections)
    door = Doorway(*where, demo is not None, *bounds, sign_up)
    invited = (invite_operator, invite_officer, invite_people, make_token)
    more = (tuple(witness or ()), users, codes, tuple(remove or ()))
    wanted = Wanted(demo, items, *invited, business, *more)
    options = Options(
        people=people,
        least_hours=least_hours,
        hours=hours,
        instant=instant,
        noise=noise,
        noise_releases=noise_releases,
        noise_changes=noise_changes,
        noise_delta=noise_delta,
        cosign_wait=cosign_wait,
        accept_lost_keys=accept_lost_keys,
    )
    with interruptible() if users else nullcontext():
        run(state, door, wanted, options, database, keys_mirror, progress=working)
