"""Estimators under interrupts at any bytecode, and under real signals at random moments."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from interrupting import ALL, CASES, VERBS, Tried, tried
from rescind.core.clock import Clock

pytestmark = [pytest.mark.slow, pytest.mark.security]
STEP = 29
"""Every so many bytecodes of all files are tried, each one of `state.py`: minutes in all."""
SIGNALS = 12
"""Real signals for each form."""
PROGRAM = """
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from interrupting import VERBS, Tried
case, verb = Tried(sys.argv[2], Path(sys.argv[3])), next(iter(VERBS[sys.argv[2]].values()))
class Now:
    busy = signalled = False
def stop(*_):
    Now.signalled = True
    if Now.busy:
        raise KeyboardInterrupt
for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, stop)
verb(case.load())  # imported and compiled
for number in range(int(sys.argv[4])):
    Now.signalled = False
    print("ready", flush=True)
    while True:  # the same change again and again
        model = case.load()
        try:
            Now.busy = True
            verb(model)
            Now.busy = False
        except KeyboardInterrupt:
            Now.busy = False
        if Now.signalled:
            break
    model.save(case.path.with_name(f"interrupted-{number}"))
    print("saved", flush=True)
"""


@pytest.mark.parametrize(("form", "verb"), CASES)
def test_an_interrupt_at_any_bytecode_leaves_no_half(tmp_path, monkeypatch, form, verb):
    """The control is in tests/estimators."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    for every, within in ((1, ("estimators/state.py",)), (STEP, ALL)):
        tries, found = tried(form, verb, tmp_path, "opcode", every, within)
        assert tries > 20
        assert found == {""}


@pytest.mark.parametrize("form", [*VERBS])
def test_a_real_signal_leaves_no_half(tmp_path, form):
    helpers = str(Path(__file__).parents[1] / "helpers")
    words = [sys.executable, "-c", PROGRAM, helpers, form, str(tmp_path), str(SIGNALS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number in range(SIGNALS):
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.1 * float(Clock(number).uniform(form, torch.tensor(0))))
            process.send_signal(signal.SIGINT if number % 2 else signal.SIGTERM)
            assert process.stdout.readline() == "saved\n"
    case, call = Tried(form, tmp_path), next(iter(VERBS[form].values()))
    outcomes = case.outcomes(call)
    for number in range(SIGNALS):
        model = case.load(tmp_path / f"interrupted-{number}")
        assert case.wrong(model, call, outcomes) == ""
