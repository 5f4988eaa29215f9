"""Compare a round with other frameworks: pfl, and Flower's simulation with a node per user.

All run the same method (FedMF): each user copies the item table, trains it and a private vector for
one local epoch of BCE with 4 negatives per positive by SGD in batches of 512, and sends the change;
the server takes the mean. All start from the same values and draw different negatives. Wall seconds
of a round, median after a warm-up round. The norm of the mean change is printed too; it must be
nearly equal.

Install the other frameworks in a separate environment:

    python -m venv peers
    peers/bin/pip install torch==2.13.0 'flwr[simulation]' pfl
    python bench/peers.py --peers peers/bin/python            # 100 and 1,000 users; minutes
    python bench/peers.py --peers peers/bin/python --users 100 --json

Ray and Flower listen on loopback only. A framework that fails is reported with the last line of its
output.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from apart import answer_of

ITEMS, DIM, POSITIVES, NEGATIVES, BATCH, RATE = 1682, 32, 80, 4, 512, 1.0


def samples(own: np.ndarray, seed: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a user's positives and new negatives in random order: (items, labels)."""
    draw = np.random.default_rng(seed)  # noqa: TID251
    free = np.setdiff1d(np.arange(items), own)
    item = np.concatenate([own, draw.choice(free, len(own) * NEGATIVES)])
    label = np.zeros(len(item), np.float32)
    label[: len(own)] = 1
    order = draw.permutation(len(item))
    return item[order], label[order]


def own_items(data: Any, user: int) -> np.ndarray:
    """Return the positives of one user."""
    return data["item"][data["first"][user] : data["first"][user + 1]]


def loss_of(item: torch.Tensor, user: torch.Tensor, at: Any, label: Any) -> torch.Tensor:
    """Compute the mean BCE of a batch."""
    score = item[torch.as_tensor(at)] @ user
    return torch.nn.functional.binary_cross_entropy_with_logits(score, torch.as_tensor(label))


# -- rescind ---------------------------------------------------------------------------------------


def federation(client: torch.Tensor, item: torch.Tensor, users: int, items: int) -> Any:
    """Start a federation of users with these records."""
    from rescind.core.federation import Federation
    from rescind.core.holdings import Holdings
    from rescind.core.records import Records
    from rescind.methods.baselines.fedavg import FedAvg
    from rescind.models.mf import MF

    method = FedAvg(
        model=MF(dim=DIM), clients_per_round=None, loss="bce", reduce="mean", temperature=1.0,
        negatives=NEGATIVES, batch_size=BATCH, rate=RATE, private_rate=RATE,
    )  # fmt: skip
    split = torch.zeros_like(client)
    return Federation.start(Holdings.of(Records.of(client, item), split, users, items), method)


def rescind(path: Path, rounds: int) -> dict[str, Any]:
    """Time rounds of rescind."""
    from rescind import __version__

    data = np.load(path)
    client = torch.from_numpy(np.repeat(np.arange(len(data["user"])), np.diff(data["first"])))
    item, users, items = torch.from_numpy(data["item"]), len(data["user"]), len(data["table"])
    fed = federation(client, item, users, items)
    times, before = [], fed.now.state.public["item"]
    for _ in range(rounds):
        begin = time.perf_counter()
        fed = fed.run(1)
        times.append(time.perf_counter() - begin)
        if len(times) == 1:
            norm = float((fed.now.state.public["item"] - before).norm())
    return {"times": times, "norm": norm, "version": __version__}


def drawn(users: int) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Return synthetic records as (users, items, number of users, of items)."""
    from rescind.data.sources.synthetic import synthetic

    world = synthetic(users=users, items=ITEMS, interactions=users * POSITIVES)
    client, item = (torch.tensor(np.asarray(x)) for x in (world.user, world.item))
    return client, item, users, ITEMS


def write(path: Path, client: torch.Tensor, item: torch.Tensor, users: int, items: int) -> None:
    """Write the data and the initial values as arrays."""
    fed = federation(client, item, users, items)
    first, count, item = fed.now.vault.holdings.lot("own")
    np.savez(
        path,
        item=item.numpy(),
        first=np.append(first.numpy(), int(count.sum())),
        table=fed.now.state.public["item"].numpy(),
        user=fed.now.vault.private["user"].numpy(),
    )


# -- pfl -------------------------------------------------------------------------------------------


class Shared(torch.nn.Module):
    """The item table and the vector of the current user."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.item = torch.nn.Parameter(torch.tensor(table))
        self.user = torch.nn.Parameter(torch.zeros(DIM))

    def loss(self, item: Any, label: Any, eval: bool = False) -> torch.Tensor:  # noqa: A002
        """Compute the loss, as pfl requires."""
        return loss_of(self.item, self.user, item, label)

    def metrics(self, item: Any, label: Any, eval: bool = True) -> dict[str, float]:  # noqa: A002
        """Return no metrics."""
        return {}


def pfl_algorithm(users: torch.Tensor) -> Any:
    """Return federated averaging with a private vector per user."""
    from pfl.algorithm.federated_averaging import FederatedAveraging

    class WithVectors(FederatedAveraging):
        def train_one_user(self, state: Any, model: Any, dataset: Any, context: Any) -> Any:
            mine = model.pytorch_model.user.data
            mine.copy_(users[dataset.user_id])
            out = super().train_one_user(state, model, dataset, context)
            users[dataset.user_id] = mine
            return out

    return WithVectors()


def pfl_timer(module: Shared, times: list[float], norms: list[float]) -> Any:
    """Return a callback that records round times and the change of the table."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    first, begin = module.item.detach().clone(), [time.perf_counter()]

    class Timer(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            times.append(time.perf_counter() - begin[0])
            norms.append(float((module.item.detach() - first).norm()))
            begin[0] = time.perf_counter()
            return False, Metrics()

    return Timer()


def pfl(path: Path, rounds: int) -> dict[str, Any]:
    """Time rounds of pfl's simulated backend."""
    from importlib.metadata import version

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    data = dict(np.load(path))
    users, times, norms = torch.tensor(data["user"]), [], []
    items = len(data["table"])

    def dataset(user: int) -> Any:
        item, label = samples(own_items(data, user), user + 10_000 * len(times), items)
        tensors = (torch.from_numpy(item), torch.from_numpy(label))
        return PyTorchTensorDataset(tensors=tensors, user_id=user)

    module = Shared(data["table"])
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD([module.item], lr=1.0))
    clients = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(len(users)))))
    params = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=10**6,
        train_cohort_size=len(users),
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH)
    backend, timer = SimulatedBackend(clients, clients), pfl_timer(module, times, norms)
    pfl_algorithm(users).run(params, backend, model, local, callbacks=[timer])
    return {"times": times, "norm": norms[0], "version": version("pfl")}


# -- Flower ----------------------------------------------------------------------------------------


def train_alone(data: Any, user: int, table: np.ndarray, vector: Any, turn: int) -> tuple[Any, Any]:
    """Train one user for one epoch. Return (change of the table, new vector)."""
    torch.set_num_threads(1)
    item = torch.tensor(table, requires_grad=True)
    mine = torch.tensor(vector, requires_grad=True)
    at, label = samples(own_items(data, user), user + 10_000 * turn, len(table))
    optimiser = torch.optim.SGD([item, mine], lr=RATE)
    for begin in range(0, len(at), BATCH):
        optimiser.zero_grad()
        loss_of(item, mine, at[begin : begin + BATCH], label[begin : begin + BATCH]).backward()
        optimiser.step()
    return item.detach().numpy() - table, mine.detach().numpy()


def flower_client(path: str) -> Any:
    """Return an app that trains the user of its partition id."""
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        user = int(context.node_config["partition-id"])
        data = np.load(path)  # read lazily, array by array
        (table,) = message.content["table"].to_numpy_ndarrays()
        kept = context.state.get("vector")
        vector = kept.to_numpy_ndarrays()[0] if kept else data["user"][user]
        turn = int(message.metadata.group_id)
        change, vector = train_alone(data, user, table, vector, turn)
        context.state["vector"] = ArrayRecord([vector])
        return Message(RecordDict({"change": ArrayRecord([change])}), reply_to=message)

    return app


def flower(path: Path, rounds: int) -> dict[str, Any]:
    """Time rounds of Flower's simulation; every user is a node."""
    from importlib.metadata import version

    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    data = dict(np.load(path))
    users, times, norms = len(data["user"]), [], []
    server = ServerApp()

    @server.main()
    def main(grid: Any, _: Any) -> None:
        table = data["table"]
        while len(nodes := list(grid.get_node_ids())) < users:
            time.sleep(0.2)
        for turn in range(rounds):
            begin = time.perf_counter()
            record = ArrayRecord([table])
            messages = [
                Message(RecordDict({"table": record}), node, "train", group_id=str(turn))
                for node in nodes
            ]
            replies = list(grid.send_and_receive(messages))
            changes = [r.content["change"].to_numpy_ndarrays()[0] for r in replies]
            if len(changes) != users:
                raise RuntimeError(f"{len(changes)} of {users} nodes answered")
            mean = np.mean(changes, 0)
            table = table + mean
            times.append(time.perf_counter() - begin)
            norms.append(float(np.linalg.norm(mean)))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, flower_client(str(path)), users, backend_config=resources)
    return {"times": times, "norm": norms[0], "version": version("flwr")}


# -- comparison ------------------------------------------------------------------------------------

PARTIES = {"rescind": rescind, "pfl": pfl, "flower": flower}
ROUNDS = {"rescind": 6, "pfl": 3, "flower": 2}


def party(name: str, python: str, path: Path, patience: float) -> dict[str, Any]:
    """Run one framework in a separate process group, and end the group afterwards."""
    answer = path.with_name(f"{name}.json")
    command = [python, __file__, "--party", name, "--data", str(path), "--answer", str(answer)]
    return answer_of(command, answer, patience)


def compare(users: int, peers: str, patience: float) -> list[dict[str, Any]]:
    """Return a row per framework for this number of users."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="rescind-") as scratch:
        path = Path(scratch) / "world.npz"
        write(path, *drawn(users))
        for name in PARTIES:
            found = party(name, sys.executable if name == "rescind" else peers, path, patience)
            row = {"party": name, "users": users, **found}
            if "times" in found:
                row["seconds"] = median(found["times"][1:])
                row["ratio"] = row["seconds"] / rows[0]["seconds"] if rows else 1.0
            rows.append(row)
            print(f"{name}, {users} users: {found}", file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as text."""
    lines = [f"{'users':>6} {'party':18} {'s a round':>10} {'to rescind':>11} {'norm':>9}"]
    for row in rows:
        name = f"{row['party']} {row.get('version', '')}"
        if "failed" in row:
            lines.append(f"{row['users']:6d} {name:18} failed: {row['failed']}")
            continue
        lines.append(
            f"{row['users']:6d} {name:18} {row['seconds']:10.4f} {row['ratio']:10.0f}x "
            f"{row['norm']:9.2e}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the comparison, or one framework of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="a python with pfl and flwr[simulation]")
    parser.add_argument("--users", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for one framework")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--party", choices=PARTIES, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.party:
        found = PARTIES[given.party](given.data, ROUNDS[given.party])
        given.answer.write_text(json.dumps(found), encoding="utf-8")
        return
    if not given.peers:
        parser.error("--peers PYTHON is missing (see the top of this file)")
    rows = [row for users in given.users for row in compare(users, given.peers, given.patience)]
    print(json.dumps(rows, indent=1) if given.json else table(rows))


if __name__ == "__main__":
    main()
