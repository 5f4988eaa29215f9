"""What a running service was told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from rescind.service.limits import ACCOUNTS, CHANGES, CONNECTIONS
from rescind.service.policy import SignUp

INSECURE = "This service is reached without encryption: others on the way can read everything."


@dataclass(frozen=True)
class Settings:
    """How the doors are reached. The ledger's own settings are `rescind.ledger.options.Options`."""

    origin: str = "http://localhost:8000"
    """Where browsers find us: scheme, host and port. Passkeys are bound to it."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """Names that a request may ask for; others are refused (DNS rebinding)."""
    demo: bool = False
    insecure: bool = False
    """Listens beyond this machine without TLS; every page says so."""
    behind_proxy: bool = False
    limits: bool = True
    """Off for measurements and for tests that call every route."""
    accounts: int = ACCOUNTS
    changes: int = CHANGES
    connections: int = CONNECTIONS
    sign_up: SignUp = SignUp.OPEN
    business: str = "RESCIND"
    """What agents call us (`business-id` of the Data Rights Protocol)."""

    @property
    def rp_id(self) -> str:
        """The name that passkeys are bound to: the host without scheme and port."""
        return self.origin.partition("://")[2].partition(":")[0]

    @property
    def encrypted(self) -> bool:
        """Whether browsers may insist on https from now on. The name localhost has other ports."""
        return self.origin.startswith("https://") and self.rp_id != "localhost"

    @property
    def warnings(self) -> list[str]:
        """What every page says, also one about an error."""
        return [INSECURE] * self.insecure

    @property
    def log_name(self) -> str:
        """What the log is called if it has no name yet: it keeps that of the first start."""
        return f"{self.origin.partition('://')[2]}/log"
