"""Two servers that add shares: one of them cheats, or a message is lost."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch

from rescind.errors import DataError
from rescind.privacy.shares import (
    MAC,
    NAME,
    NUMBER,
    PRIME,
    Share,
    client_shares,
    code_of,
    device_key,
)
from rescind.privacy.two_servers import TwoServers

SIZE = 3


class Local(TwoServers):
    """Both servers in this process, where a test can make them cheat and lose messages."""

    def __enter__(self) -> TwoServers:
        self.servers = [
            Share(np.zeros(self.size, dtype=np.uint64), self.least, n == 0, secret, b"link" * 8)
            for n, secret in enumerate(self._secrets)
        ]
        self.lost: set[bytes] = set()
        return self

    def _ask(self, server: int, kind: bytes, load: bytes = b"", device: int | None = None) -> bytes:
        if kind in self.lost:
            raise DataError("lost")
        secret = self._secrets[server]
        key = code_of(secret, b"reader")
        if device is not None:
            key = device_key(secret, device)
        return self.send(server, kind, load, device or 0, key)

    def send(self, server: int, kind: bytes, load: bytes, device: int, key: bytes) -> bytes:
        """Send a message under any key."""
        body = self._period.to_bytes(8, "big") + device.to_bytes(8, "big") + load
        answer = self.servers[server].answer(kind + code_of(key, kind, body) + body)
        if answer[:1] != b"K":
            raise DataError(answer[1:].decode())
        return answer[1:]


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_a_lost_share_blocks_nobody() -> None:
    with Local(SIZE, least=2) as servers:
        assert isinstance(servers, Local)
        servers.add(numbers(1, 2, 3), device=0)
        servers.lost = {b"M"}
        with pytest.raises(DataError, match="lost"):
            servers.add(numbers(5, 5, 5), device=1)
        servers.lost = set()
        with pytest.raises(DataError, match=r"1 devices contributed.*2 are needed"):
            servers.open()  # a half contribution does not count
        servers.add(numbers(0, 1, 0), device=2)
        assert servers.open().tolist() == [1, 3, 3]
        servers.add(numbers(5, 5, 5), device=1)  # sent again
        servers.add(numbers(1, 0, 0), device=0)
        assert servers.open().tolist() == [7, 8, 8]


def test_an_opening_whose_answer_was_lost_is_repeated() -> None:
    with Local(SIZE) as servers:
        assert isinstance(servers, Local)
        servers.add(numbers(1, 2, 3), device=0)
        servers._ask(1, b"O")  # the reader is killed here
        with pytest.raises(DataError, match="a message for opening 0, the next is 1"):
            servers.add(numbers(9, 9, 9), device=1)
        assert servers.open().tolist() == [1, 2, 3]
        servers.add(numbers(9, 9, 9), device=1)
        assert servers.open().tolist() == [10, 11, 12]


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with TwoServers(SIZE, wait=0.5) as servers:
        servers.add(numbers(1, 2, 3), device=0)
        second = servers._processes[1]
        second.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(DataError, match="server 2 of 2 does not answer"):
                servers.open()
        finally:
            second.send_signal(signal.SIGCONT)
        assert servers.open().tolist() == [1, 2, 3], "the control: it goes on"


def test_only_different_devices_with_a_key_count() -> None:
    with Local(SIZE, least=3) as servers:
        assert isinstance(servers, Local)
        for _ in range(5):
            servers.add(numbers(1, 0, 0), device=0)
        with pytest.raises(DataError, match=r"1 devices contributed.*3 are needed"):
            servers.open()
        # The first server invents devices. It knows its own secret and the receipts.
        first, name = servers._secrets[0], bytes(NAME)
        seed, masked = client_shares(torch.zeros(SIZE, dtype=torch.int64))
        receipt = servers.send(0, b"S", name + seed, 7, device_key(first, 7))
        load = name + receipt + bytes(NUMBER) + masked.astype("<u8").tobytes()
        with pytest.raises(DataError, match="the sender is not known"):
            servers.send(1, b"M", load, 7, device_key(first, 7))
        # The second server invents some: the first has no seeds of them.
        second = servers.servers[1]
        second.devices |= {bytes([n]) * NAME: n for n in range(1, 4)}
        with pytest.raises(DataError, match="seeds of contributions are missing"):
            servers.open()


def test_a_share_without_a_receipt_or_sent_twice_is_refused() -> None:
    with Local(SIZE) as servers:
        assert isinstance(servers, Local)
        name, vector = bytes(range(NAME)), bytes(NUMBER + 8 * SIZE)
        with pytest.raises(DataError, match="first server did not receive"):
            servers._ask(1, b"M", name + bytes(MAC) + vector, 3)
        receipt = servers._ask(0, b"S", name + bytes(32), 3)
        with pytest.raises(DataError, match="first server did not receive"):
            servers._ask(1, b"M", name + receipt + vector, 4)  # another device's
        servers._ask(1, b"M", name + receipt + vector, 3)
        for server, kind, load in ((0, b"S", bytes(32)), (1, b"M", receipt + vector)):
            before = servers.servers[server].total.copy()
            with pytest.raises(DataError, match="already received"):
                servers._ask(server, kind, name + load, 3)
            with pytest.raises(DataError, match="a share of 5 bytes"):
                servers._ask(server, kind, bytes(NAME) + bytes(5), 3)
            assert (servers.servers[server].total == before).all()


@pytest.mark.parametrize("message", [b"", b"?", b"O", b"M" * 60, b"S" * 500])
def test_nonsense_changes_nothing(message: bytes) -> None:
    share = Share(np.zeros(SIZE, dtype=np.uint64), 1, True, bytes(32), bytes(32))
    assert share.answer(message)[:1] == b"R"
    assert not share.total.any()
    assert share.period == 0


@pytest.mark.parametrize("cheat", ["total", "checksum", "both", "vector", "far"])
@pytest.mark.parametrize("server", [0, 1])
def test_a_server_that_changes_something_is_found(cheat: str, server: int) -> None:
    with Local(SIZE, least=2) as servers:
        assert isinstance(servers, Local)
        servers.add(numbers(1, 2, 3), device=0)
        servers.add(numbers(4, -4, 0), device=1)
        share = servers.servers[server]
        if cheat == "total":
            share.total += np.uint64(1)
        elif cheat == "checksum":
            share.tag = (share.tag + 1) % PRIME
        elif cheat == "both":
            share.total[0] += np.uint64(1)
            share.tag = (share.tag + 12345) % PRIME
        elif cheat == "vector":
            share.total -= np.uint64(2**40)
        else:  # PRIME is zero for the checksum, and -2**63 is -4
            share.total[0] += np.uint64(PRIME)
        with pytest.raises(DataError, match="does not fit its checksum"):
            servers.open()


def test_the_same_servers_without_a_cheat_open_the_sum() -> None:
    """The control of the test before."""
    with Local(SIZE, least=2) as servers:
        servers.add(numbers(1, 2, 3), device=0)
        servers.add(numbers(4, -4, 0), device=1)
        assert servers.open().tolist() == [5, -2, 3]


def test_the_list_of_contributions_is_the_second_servers() -> None:
    """A reader who could name the contributions would open the sum of one device."""
    with Local(SIZE) as servers:
        assert isinstance(servers, Local)
        servers.add(numbers(1, 2, 3), device=0)
        servers.add(numbers(7, 7, 7), device=1)
        one = next(iter(servers.servers[0].devices))
        for code in (bytes(MAC), code_of(servers._secrets[0], b"list")):
            with pytest.raises(DataError, match="not the second server's"):
                servers._ask(0, b"O", code + one)
        assert servers.open().tolist() == [8, 9, 10]
