"""Strangers at a deployment: without a registered key nothing is let in and nothing is run."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StartRunResponse
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink import extensions
from flwr.superlink.main import create_app
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from starlette.testclient import TestClient

from flower.deployments import PATIENCE, Machines
from rescind.errors import ConfigError, DataError
from rescind.flower import bundle, operator_key
from rescind.flower.certificates import make_kit
from rescind.flower.deploy import Link, Operator
from rescind.flower.operator_key import HEADER, OperatorCheck, load_operator_key, signed
from rescind.flower.run_request import RunRequest
from rescind.flower.superlink import Gate, Guests
from rescind.flower.supernode import refusing
from rescind.flower.wire import flwr_private
from rescind.privacy import keys

pytestmark = pytest.mark.flower

HERE, STRANGER = "127.0.0.1", "203.0.113.9"
START, LIST, ACQUIRE = "/v1/control/start-run", "/v1/control/list-runs", "/v1/runtime/acquire-task"
ACTIVATE = "/v1/fleet/activate-node"
PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}
EVIL = "import os\nos.system('touch owned')\n"


def foreign_bundle() -> bytes:
    """Return a valid bundle of Flower with code of its own."""
    files = {**bundle.FILES, "evil.py": EVIL}
    files["pyproject.toml"] = files["pyproject.toml"].replace("rescind.flower.apps:", "evil:")
    lines = [
        f"{name},{hashlib.sha256(text.encode()).hexdigest()},{8 * len(text)}"
        for name, text in files.items()
    ]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in {**files, ".info/CONTENT": "\n".join(lines)}.items():
            archive.writestr(name, text)
    return file.getvalue()


def start_request(content: bytes) -> bytes:
    fab = flwr_private.fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
    return bytes(StartRunRequest(fab=fab).SerializeToString())


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kit(tmp_path_factory.mktemp("deployment") / "kit", 2, ["localhost"])


Post = Callable[..., Any]


@pytest.fixture
def superlink(kit: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bool], Post]]:
    """Return Flower's SuperLink in this process: (address of the peer, gated) -> post."""
    original = vars(extensions).copy()

    def posts(peer: str, gated: bool = True) -> Post:
        if gated:
            guests = Guests.of_kit(kit / "server")
            flwr_private.set_gate(Gate, guests, guests.silos)
        app = create_app()
        app.state.enable_supernode_auth = True
        client = TestClient(app, client=(peer, 5555))

        def post(path: str, body: bytes, **headers: str) -> Any:
            return client.post(path, content=body, headers={**PROTOBUF, **headers})

        return post

    yield posts
    for name in ("get_middleware", "configure_app"):
        monkeypatch.setattr(extensions, name, original[name])


def by_operator(kit: Path, path: str, body: bytes) -> dict[str, str]:
    return {HEADER: signed(load_operator_key(kit / "operator" / "operator.key"), path, body)}


def by_node(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """Return the headers with which Flower's SuperNode proves its key."""
    request = SimpleNamespace(headers={})
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(
        SimpleNamespace(request=request), lambda _: None
    )
    return dict(request.headers)


# -- who may connect -------------------------------------------------------------------------------


def test_flower_alone_runs_the_code_of_a_stranger(superlink: Callable[..., Post]) -> None:
    """The control: without our gate a submission without any key is accepted."""
    reply = superlink(STRANGER, gated=False)(START, start_request(foreign_bundle()))
    assert reply.status_code == 200
    assert StartRunResponse.FromString(reply.content).run_id


@pytest.mark.parametrize("peer", [HERE, STRANGER])
def test_a_submission_without_a_key_is_refused(peer: str, superlink: Callable[..., Post]) -> None:
    post = superlink(peer)
    for content in (foreign_bundle(), bundle.bundle()):
        reply = post(START, start_request(content))
        assert reply.status_code == 403
        assert "operator" in reply.text or "only silos" in reply.text


def test_the_operator_starts_our_bundle_from_this_machine(
    superlink: Callable[..., Post], kit: Path
) -> None:
    body = start_request(bundle.bundle())
    reply = superlink(HERE)(START, body, **by_operator(kit, START, body))
    assert reply.status_code == 200, reply.text
    assert StartRunResponse.FromString(reply.content).run_id
    elsewhere = superlink(STRANGER)(START, body, **by_operator(kit, START, body))
    assert elsewhere.status_code == 403


def test_even_the_operator_cannot_start_another_bundle(
    superlink: Callable[..., Post], kit: Path
) -> None:
    post, fab = superlink(HERE), flwr_private.fab_to_proto
    ours = Fab(bundle.bundle_digest(), bundle.bundle(), {})
    for request in (
        StartRunRequest.FromString(start_request(foreign_bundle())),
        StartRunRequest(fab=fab(ours), app_spec="@someone/else"),
        StartRunRequest(fab=fab(Fab(bundle.bundle_digest(), foreign_bundle(), {}))),
        StartRunRequest(),
    ):
        body = request.SerializeToString()
        reply = post(START, body, **by_operator(kit, START, body))
        assert (reply.status_code, "refused" in reply.text) == (403, True)


def test_a_signature_counts_once_and_for_its_request_only(
    superlink: Callable[..., Post], kit: Path
) -> None:
    post, body = superlink(HERE), ListRunsRequest().SerializeToString()
    header = by_operator(kit, LIST, body)
    assert post(LIST, body, **header).status_code == 200
    assert "sent before" in post(LIST, body, **header).text
    start = start_request(bundle.bundle())
    assert "not the operator's" in post(START, start, **by_operator(kit, LIST, start)).text
    assert "not the operator's" in post(START, start, **by_operator(kit, START, b"")).text
    for junk in ("", "1", "a.b.c", "1.2.zz", "9" * 400 + ".1.00", "1..", header[HEADER] + "00"):
        assert post(LIST, body, **{HEADER: junk}).status_code == 403


def test_an_old_signature_is_refused(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = OperatorCheck(keys.public_key(str(kit / "server" / "operator.pub")))
    header = by_operator(kit, LIST, b"")[HEADER]
    real = operator_key.time.time
    monkeypatch.setattr(operator_key.time, "time", lambda: real() + operator_key.FRESH + 60)
    assert "check the clocks" in str(check.refusal(header, LIST, b""))
    monkeypatch.undo()
    assert check.refusal(header, LIST, b"") is None


@pytest.mark.parametrize(
    "path",
    ["/docs", "/openapi.json", "/v1/responses", "/v1/control/register-node", ACQUIRE,
     "/v1/control/stop-run", "/v1/control/start-automation", "/v1/control/get-login-details",
     "//v1/control/start-run", "/v1/fleet/../control/start-run", "/v1/CONTROL/start-run", "/"],
)  # fmt: skip
def test_a_stranger_reaches_no_other_interface(path: str, superlink: Callable[..., Post]) -> None:
    assert superlink(STRANGER)(path, b"").status_code in (403, 412)


def test_runtime_is_for_this_machine_only(superlink: Callable[..., Post]) -> None:
    body = AcquireTaskRequest().SerializeToString()
    assert superlink(STRANGER)(ACQUIRE, body).status_code == 403
    assert superlink(HERE)(ACQUIRE, body).status_code != 403  # Flower checks the secret


def test_only_silos_of_the_kit_join(superlink: Callable[..., Post], kit: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    post = superlink(STRANGER)
    own = load_ssh_private_key((kit / "silo-1" / "node.key").read_bytes(), None)
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    other = ec.generate_private_key(ec.SECP384R1())

    def activation(key: ec.EllipticCurvePrivateKey) -> bytes:
        public = flwr_private.public_key_to_bytes(key.public_key())
        return bytes(
            ActivateNodeRequest(public_key=public, heartbeat_interval=30).SerializeToString()
        )

    reply = post(ACTIVATE, activation(own), **by_node(own))
    assert reply.status_code == 200, reply.text
    assert ActivateNodeResponse.FromString(reply.content).node_id
    for refused in (post(ACTIVATE, activation(other), **by_node(other)), post(ACTIVATE, b"")):
        assert (refused.status_code, refused.text[:7]) == (412, "refused")
    assert "not that of a silo" in post(ACTIVATE, activation(own)).text
    stolen = {**by_node(other), "flwr-public-key": by_node(own)["flwr-public-key"]}
    assert post(ACTIVATE, activation(own), **stolen).status_code == 401  # Flower's own check


def test_without_keys_only_this_machine_connects() -> None:
    scope = {"path": "/v1/fleet/x", "headers": [], "server": ("10.0.0.5", 1)}
    refusal = Guests().refusal
    assert refusal({**scope, "client": (STRANGER, 1)}, b"")
    assert refusal({**scope, "client": None}, b"")
    assert refusal({**scope, "client": (HERE, 1)}, b"") is None
    assert refusal({**scope, "client": ("10.0.0.5", 1)}, b"") is None
    assert refusal({**scope, "client": (HERE, 1), "path": START}, start_request(foreign_bundle()))


@pytest.mark.parametrize("missing", ["operator.pub", "silo-*.pub"])
def test_a_kit_that_does_not_say_who_may_connect_starts_nothing(
    missing: str, tmp_path: Path
) -> None:
    kit = make_kit(tmp_path / "kit", 1, ["localhost"])
    assert Guests.of_kit(kit / "server").silos
    for path in (kit / "server").glob(missing):
        path.unlink()
    with pytest.raises(ConfigError, match="anyone could submit"):
        Guests.of_kit(kit / "server")


# -- what may run ----------------------------------------------------------------------------------


def test_the_bundle_is_the_same_everywhere() -> None:
    """Its digest is part of the protocol: a change of it excludes silos of other versions."""
    assert bundle.bundle_digest() == DIGEST
    with zipfile.ZipFile(io.BytesIO(bundle.bundle())) as archive:
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}


DIGEST = "dcb1a5f49aa6a116a9ced696cf7308c403aaf9dafdb2512ed4b8579e2eccc938"


def pulled(content: bytes, guarded: bool) -> tuple[list[Message], list[Fab]]:
    """Let a SuperNode receive a message of a run with this bundle. Return (replies, stored)."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    message = Message(RecordDict(), 7, "query")
    message.metadata.__dict__["_message_id"] = "m"
    replies: list[Message] = []
    fabs: list[Fab] = []
    state = SimpleNamespace(
        get_run=lambda _: None, get_node_id=lambda: 7, get_run_series_context=lambda _: None,
        set_run_series_context=lambda *_: None, store_run=lambda _: None, store_fab=fabs.append,
        create_task=lambda **_: None, store_message=replies.append,
    )  # fmt: skip
    store = SimpleNamespace(preregister=lambda *_: [], put=lambda *_: None)
    digest = hashlib.sha256(content).hexdigest()
    pull = flwr_private.pull_and_store_message
    (refusing(pull) if guarded else pull)(
        state=state, object_store=store, node_config={}, receive=lambda: (message, None),
        get_run=Run.create_empty,
        get_fab=lambda *_: Fab(digest, content, {}), pull_object=lambda *_: b"",
        confirm_message_received=lambda *_: None, trusted_entities=None,
    )  # fmt: skip
    return replies, fabs


def test_a_silo_refuses_another_bundle_with_a_reply() -> None:
    assert pulled(foreign_bundle(), guarded=False)[1]  # the control: Flower stores it to run it
    replies, fabs = pulled(foreign_bundle(), guarded=True)
    assert not fabs
    assert "is refused" in replies[0].error.reason
    assert pulled(bundle.bundle(), guarded=True)[1]


def test_the_server_does_not_run_a_bundle_that_was_stored_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = (flwr_private.SqlCoreState, flwr_private.InMemoryCoreState)
    for kind in kinds:
        monkeypatch.setattr(kind, "get_fab", kind.get_fab)  # restored after the test
    app = create_app()
    state = app.state.linkstate_factory.state()
    stored = {}
    for content in (foreign_bundle(), bundle.bundle()):
        digest = hashlib.sha256(content).hexdigest()
        state.store_fab(Fab(digest, content, {}))
        stored[digest] = state.get_fab(digest)
    assert all(stored.values())  # the control
    flwr_private.check_stored_bundles(lambda content: bundle.refusal(content) is None)
    found = {digest: state.get_fab(digest) is not None for digest in stored}
    assert found == {digest: digest == bundle.bundle_digest() for digest in stored}


# -- with real processes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stranger_with_the_port_and_the_certificate_is_refused(tmp_path: Path) -> None:
    with Machines(tmp_path, silos=1) as machines:
        made = machines.start("kit", "kit", "--silos", "1", "--out", "kit")
        assert made.wait(PATIENCE) == 0, machines.log("kit")
        machines.up("--kit", "kit/server")
        link = Link("127.0.0.1", machines.port, tmp_path / "kit" / "silo-0" / "ca.pem")
        (tmp_path / "owned").mkdir()
        asked = RunRequest(str(machines.recipe), 1, str(tmp_path / "owned"))
        with pytest.raises(DataError, match="not signed by the operator"):
            Operator(link, None).submit(asked)
        other = make_kit(tmp_path / "other", 1, ["localhost"])
        with pytest.raises(DataError, match="not the operator's"):
            Operator.of_kit(link, other / "operator").submit(asked)
        machines.join(0, "--kit", "kit/silo-0")
        machines.run("--kit", "kit/operator")
        machines.finished()
    assert not [*(tmp_path / "owned").iterdir()]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["silos"]["refused"] == {}
