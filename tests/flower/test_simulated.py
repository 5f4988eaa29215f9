"""Slow tests with the extra `simulation`: silos that Flower simulates with Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.testing import assert_close

pytest.importorskip("flwr")
pytest.importorskip("ray")

from flower.deployments import PATIENCE
from flower.whole_recipes import WHOLE, in_process
from rescind.core import params

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.data]


@pytest.mark.parametrize("method", WHOLE)
def test_simulated_silos_learn_and_forget_as_one_process_does(method: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(WHOLE[method])
    command = [sys.executable, "-m", "rescind.cli", "flower", "simulate", str(recipe)]
    done = subprocess.run(
        [*command, "--silos", "2", "--out", str(tmp_path / "out")],
        capture_output=True, text=True, check=False, timeout=2 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    there, _ = params.load(tmp_path / "out" / "model" / "public.safetensors")
    for name, value in in_process(recipe).items():
        assert_close(there[name], value, rtol=1e-5, atol=1e-5)
