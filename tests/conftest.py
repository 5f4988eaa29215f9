"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from rescind.core.federation import Federation
    from rescind.core.holdings import Holdings

# The same examples on every machine and no clock of the machine in a verdict.
hypothesis.settings.register_profile(
    "rescind", derandomize=True, deadline=None, database=None, max_examples=50
)
hypothesis.settings.load_profile("rescind")


# Variants of tests that stay in the fast suite, and experiments on real data: `make test-slow`.
REPETITIONS = (
    "test_deployed.py::test_two_silos_on_loopback",  # a minute of starting real processes
    "flower/test_dropout.py::",  # accuracy on ML-100K with a third of the silos missing
    "test_a_server_killed_before_replies_come_gives_the_same_result[FedShareUnlearn",
    "test_a_server_killed_before_replies_come_gives_the_same_result[Retrain-1",
    "test_departures.py::test_the_page_is_written_where_it_is_asked_for",
    "test_a_server_killed_after_every_exchange_gives_the_same_result[Retrain",
    "test_a_server_killed_while_it_forgets_with_masked_sums_gives_the_same_result[Retrain",
    "test_clients_leave_graphs_and_streams_while_the_server_is_killed",
    "test_kill_and_resume.py::test_the_command_killed_in_a_round_resumes_to_the_same_bits",
    "test_kill_and_resume.py::test_a_run_killed_at_a_touch_of_the_disk_resumes",
    "test_kill_and_resume.py::test_a_run_killed_at_any_moment_resumes",
    "test_kill_and_resume.py::test_a_torn_checkpoint_is_named",
    "test_kill_and_resume.py::test_a_full_disk_is_a_clear_error",
    "test_kill_and_resume.py::test_a_new_run_over_an_old_one_never_leaves_a_silent_mix",
    "test_fedgcv.py::test_on_cora_",
    "test_fedgcv.py::test_tolokers_",
    "test_findings_page.py::test_a_finding_is_found_again",
    "test_reproduce.py::test_data_that_cannot_be_had_stops_nothing_else",
    "test_value.py::test_two_processes_find_what_one_finds",
    "test_two_servers.py::test_a_run_over_two_servers_forgets_and_resumes_from_disk",
    "test_verdict.py::test_a_retrain_loses_no_tenth_by_luck",
    "test_known_answers.py::test_perfect_forgetting_passes",
    "test_stream.py::test_a_stream_repeats_bit_for_bit[",
    "test_boundary.py::test_a_run_over_a_wire_of_sums_is_the_run_itself[",
    "test_forget_killed.py::test_killed_it_is_finished_by_any_other_command_on_either_folder",
    "test_audit_command.py::test_the_same_audit_again_finds_its_retrains",
    "test_examine.py::test_the_same_audit_twice_gives_the_same_findings",
    "test_kill_and_resume.py::test_a_table_killed_in_its_second_cell",
    "test_grid.py::test_a_shared_first_block_changes_no_line",
    "test_forget_killed.py::test_two_at_once_are_told_apart",
    "test_leak.py::test_json_of_everything_holds_what_was_peeled",
    "test_peeling.py::test_sequences_are_read_from_a_sum_of_ordered_pairs_in_their_order",
    "test_kill_and_resume.py::test_a_file_that_may_not_grow_leaves_the_old_checkpoint_as_it_was",
    "test_kill_and_resume.py::test_with_all_checkpoints_torn_a_run_starts_anew_and_says_so",
)
KEPT = ("[FedShare]", "[Gram]", "[FineTune]", "[F3CRec]", "replace-server.safetensors-0-before]")
"""Of these, the cases that run every time."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark repetitions as slow."""
    for item in items:
        if item.nodeid.endswith(KEPT):
            continue
        if any(name in item.nodeid for name in REPETITIONS):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test of real data is skipped, with what was tried, where the data cannot be had."""
    from rescind.errors import DataError

    try:
        return (yield)
    except DataError as error:
        if item.get_closest_marker("data") is None or "could not be obtained" not in str(error):
            raise
        pytest.skip(str(error).splitlines()[0].removesuffix(" Tried:"))


@pytest.fixture
def tiny() -> Holdings:
    """Six clients and twelve items, with splits."""
    from worlds import tiny_holdings  # here, so that collecting tests loads no more than they do

    return tiny_holdings()


@pytest.fixture
def tiny_fed(tiny: Holdings) -> Federation:
    """The tiny holdings under plain averaging, three clients a round."""
    from rescind.core.federation import Federation
    from rescind.methods.baselines.fedavg import FedAvg
    from rescind.models.lightgcn import LightGCN

    model = LightGCN(dim=4, user_spread=0.04)
    method = FedAvg(model=model, clients_per_round=3, private_rate=0.01)
    return Federation.start(tiny, method, seed=7)


@pytest.fixture(autouse=True)
def keys_of_the_test(tmp_path_factory, monkeypatch):
    """Secrets of a test go to a folder of the test, never to the user's own."""
    monkeypatch.setenv("RESCIND_KEYS", str(tmp_path_factory.mktemp("keys")))
