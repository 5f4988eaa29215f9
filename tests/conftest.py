"""What every test may ask for."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import cache
from itertools import count
from pathlib import Path
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
    "test_findings_page.py::test_a_finding_is_found_again",
    "test_reproduce.py::test_data_that_cannot_be_had_stops_nothing_else",
    "test_value.py::test_two_processes_find_what_one_finds",
    "test_two_servers.py::test_a_run_over_two_servers_forgets_and_resumes_from_disk",
    "test_verdict.py::test_a_retrain_loses_no_tenth_by_luck",
    "test_known_answers.py::test_perfect_forgetting_passes",
    "test_stream.py::test_a_stream_repeats_bit_for_bit[",
    "test_boundary.py::test_a_run_over_a_wire_of_sums_is_the_run_itself[",
    "test_audit_command.py::test_the_same_audit_again_finds_its_retrains",
    "test_examine.py::test_the_same_audit_twice_gives_the_same_findings",
    "test_kill_and_resume.py::test_a_table_killed_in_its_second_cell",
    "test_grid.py::test_a_shared_first_block_changes_no_line",
    "test_leak.py::test_json_of_everything_holds_what_was_peeled",
    "test_peeling.py::test_sequences_are_read_from_a_sum_of_ordered_pairs_in_their_order",
    "test_kill_and_resume.py::test_a_file_that_may_not_grow_leaves_the_old_checkpoint_as_it_was",
    "test_kill_and_resume.py::test_with_all_checkpoints_torn_a_run_starts_anew_and_says_so",
    "test_trials.py::test_every_unlearner_gives_one_line_with_its_own_figures",
    "test_killed.py::test_a_server_killed_after_every_exchange_gives_the_same_result[FedShareUnlearn]",
    "test_killed.py::test_an_invalid_journal_is_not_used",
    "test_streams.py::test_a_stream_over_silos_gives_the_result_of_one_process[4-1e-05]",
    "test_streams.py::test_a_stream_over_silos_gives_the_result_of_one_process[2-1e-05]",
    "test_streams.py::test_a_resumed_server_brings_no_earlier_block_back",
    "test_streams.py::test_a_client_leaves_after_the_last_block",
    "test_many_requests.py::test_a_new_training_after_a_request_starts_without_the_erased",
    "test_equal.py::test_graphs_are_added_up_in_one_round_and_forget_exactly[1]",
    "test_kill_and_resume.py::test_a_checkpoint_of_other_settings_is_refused_and_kept",
    "test_audit_cheats.py::test_nothing_is_said_about_one_person",
    "test_audit_cheats.py::test_a_cheat_fails_its_audit[hoard]",
    "test_audit_cheats.py::test_a_cheat_fails_its_audit[flatten]",
    "test_reproduce.py::test_tables_and_figures_are_run_written_and_resumed",
    "test_notebooks.py::test_a_method_of_one_file_is_judged",
    "test_notebooks.py::test_share_regret_forget_runs",
    "test_releasing.py::test_killed_while_a_release_is_made[receipts committed]",
    "test_live_sum.py::test_a_service_loads_no_torch",
    "test_evaluation.py::test_a_single_list_does_not_load_the_compiler",
    "test_stream_forgetting.py::test_forgetting_in_a_stream_is_audited_and_says_what_it_reaches",
    "test_forget_in_a_graph.py::test_what_is_erased_is_left_out_by_every_later_run[nodes]",
    "test_forget_in_a_graph.py::test_parts_that_are_drawn_anew_leave_it_out_too",
    "test_privacy_dial.py::test_a_receipt_that_was_tampered_with_does_not_verify",
    "test_broken_files_end_with_a_sentence.py::test_a_run_with_a_broken_file_is_refused_in_words[withheld.json]",
    "test_broken_files_end_with_a_sentence.py::test_a_run_with_a_broken_file_is_refused_in_words[run.json]",
    "test_run_and_receipt.py::test_a_model_beside_another_ones_receipt_is_refused[model]",
    "test_drift.py::test_the_static_moved_least_in_the_first_round_of_the_second_block",
    "test_leak.py::test_the_command_writes_what_it_found_and_does_not_measure_twice",
    "test_ulira.py::test_a_stopped_audit_goes_on_where_it_was",
    "test_changes.py::test_long_histories_give_what_rebuilding_gives[2]",
    "test_command_line.py::test_an_interrupted_run_resumes_to_the_same_bits[11]",
    "test_stream.py::test_a_stream_killed_anywhere_goes_on_bit_for_bit[1-0]",
    "test_stream.py::test_a_stream_killed_anywhere_goes_on_bit_for_bit[7-0]",
    "test_stream.py::test_a_stream_killed_anywhere_goes_on_bit_for_bit[10-1]",
    "test_noise.py::test_the_other_process_makes_the_same_release",
    "test_forget_a_run.py::test_the_seconds_of_forgetting_count_forgetting_alone",
    "test_kill_and_resume.py::test_a_new_run_over_an_old_one_leaves_the_old_or_the_new",
    "test_serving.py::test_a_client_of_a_graph_leaves",
    "test_examine.py::test_a_run_of_sequences_is_audited_with_its_controls",
    "test_every_setting.py::test_a_setting_without_effect_would_be_found",
    "test_every_method.py::test_10_resume_is_uninterrupted_bit_for_bit[2-",
    "test_every_method.py::test_8_after_forgetting_nothing_is_left_and_the_receipt_verifies[erase-",
    "test_any_request_is_answered_and_leaves_no_trace[several people at once-",
    "test_any_request_is_answered_and_leaves_no_trace[all who lend take it back-",
    "core/test_history.py::test_every_method_forgets_exactly[erase-",
    "core/test_boundary.py::test_a_world_at_the_edge_trains_and_is_measured[only_one_device",
    "flower/test_many_requests.py::test_a_silo_that_is_waited_for_is_named_with_the_time",
    "flower/test_many_requests.py::test_an_answered_request_is_not_kept_on_the_server",
    "flower/test_streams.py::test_a_new_training_has_no_block_of_what_was_forgotten[erase]",
    "flower/test_streams.py::test_a_stream_whose_server_was_killed_resumes_in_its_block",
    "test_who_left_stays_away_when_people_are_numbered_anew[by number-",
    "test_who_left_stays_away_when_people_are_numbered_anew[by id-erase]",
    "test_a_request_after_growth_means_the_person_whom_the_run_was_trained_with[1]",
    "flower/test_killed.py::test_other_requests_join_the_queue_of_a_killed_server",
    "flower/test_killed.py::test_a_resumed_server_brings_no_forgotten_record_back_to_a_silo",
    "flower/test_serving.py::test_the_request_of_a_recipe_is_answered_as_in_one_process[FedShare-",
    "flower/test_serving.py::test_clients_take_back_and_leave_after_training",
    "flower/test_waiting.py::test_a_run_that_fails_leaves_the_result_of_the_one_before",
    "flower/test_equal.py::test_blocks_come_one_after_another[1]",
    "test_trials.py::test_nodes_are_learnt_and_forgotten_by_the_measures_of_their_task",
    "test_trials.py::test_accuracy_is_that_of_the_clients_who_stay",
    "test_stopped.py::test_tuning_writes_no_recipe",
    "test_forget_command.py::test_a_page_begins_with_the_number_of_the_request_and_who_answered",
    "test_forget_command.py::test_all_who_leave_are_taken_each_with_a_receipt",
    "test_stream_forgetting.py::test_erased_in_a_block_and_still_gone_after_each_later_one",
    "test_forget_in_a_graph.py::test_what_is_erased_is_left_out_by_every_later_run[labels]",
    "test_bad_graphs.py::test_an_odd_client_leaves_by_every_form_of_fedgcv[no features-",
    "test_bad_graphs.py::test_an_odd_client_leaves_by_every_form_of_fedgcv[loops and repeats-",
    "test_bad_graphs.py::test_an_odd_client_leaves_by_every_method[no features-",
    "test_bad_graphs.py::test_an_odd_client_leaves_by_every_method[loops and repeats-",
    "test_stream.py::test_a_stream_killed_anywhere_goes_on_bit_for_bit[15-1]",
    "test_stream.py::test_a_stream_killed_anywhere_goes_on_bit_for_bit[10-0]",
    "service/test_roster.py::test_a_sum_that_holds_anything_else_is_found[off by one]",
    "service/test_roster.py::test_a_sum_that_holds_anything_else_is_found[record kept]",
    "test_killed_at_each_point_a_start_reaches_the_end[before keys synced-leave]",
    "ledger/test_releasing.py::test_the_process_that_makes_releases_makes_the_same",
    "ledger/test_rostering.py::test_killed_while_a_roster_is_made_the_old_one_stays",
    "test_examine.py::test_a_loan_taken_back_is_judged_beside_retrains_that_keep_it_on_the_device",
    "test_ulira_nodes.py::test_a_client_that_stays_is_found_and_one_that_is_retrained_away_is_not",
    "test_known_answers.py::test_the_interval_holds_a_planted_leak_about_as_often_as_it_says[0.1]",
    "test_audit_command.py::test_a_script_can_tell_a_failed_audit_by_its_exit_code[INCONCLUSIVE-0]",
    "life/test_nodes.py::test_doing_nothing_is_at_the_distance_of_doing_nothing",
    "life/test_nodes.py::test_an_edge_that_stays_is_seen",
    "proof/test_stories.py::test_what_cannot_be_checked_is_told_with_code_1_or_2",
    "service/test_generations.py::test_a_chosen_generation_serves_until_somebody_takes_something_back",
    "life/test_nodes.py::test_exact_rows_are_equal_after_each_step[GraphFedSGD + retraining]",
    "flower/test_rosters.py::test_a_run_publishes_its_roster_after_training_and_after_forgetting",
    "test_every_method.py::test_8_after_forgetting_nothing_is_left_and_the_receipt_verifies[unshare-",
    "test_any_request_is_answered_and_leaves_no_trace[the same person twice-",
    "core/test_history.py::test_every_method_forgets_exactly[unshare-",
    "core/test_boundary.py::test_a_world_at_the_edge_trains_and_is_measured[one_item_shared",
    "test_every_method.py::test_10_resume_is_uninterrupted_bit_for_bit[4-",
    "test_any_request_is_answered_and_leaves_no_trace[one kept record-",
    "test_any_request_is_answered_and_leaves_no_trace[all of one who never shared-",
    "test_any_request_is_answered_and_leaves_no_trace[one who never shared leaves-",
    "test_late.py::test_a_silo_that_missed_a_block_takes_part_in_the_retraining[True-0-Erase]",
    "test_late.py::test_a_silo_that_missed_a_block_takes_part_in_the_retraining[True-1-Erase]",
    "test_late.py::test_a_silo_that_missed_a_block_takes_part_in_the_retraining[False-0-Withdraw]",
    "test_late.py::test_a_silo_that_missed_a_block_takes_part_in_the_retraining[False-1-Erase]",
    "test_bad_graphs.py::test_an_odd_client_leaves_by_every_form_of_fedgcv[one class-",
    "test_bad_graphs.py::test_an_odd_client_leaves_by_every_method[one class-",
    "test_subtraction.py::test_forgetting_is_never_having_had_it[method1-0-",
    "test_subtraction.py::test_forgetting_is_never_having_had_it[method2-32-",
    "test_logged_receipts.py::test_the_script_of_the_page_holds_for_the_first_receipts_of_a_log[2-",
    "test_logged_receipts.py::test_the_script_of_the_page_holds_for_the_first_receipts_of_a_log[3-0-",
    "test_logged_receipts.py::test_the_script_of_the_page_holds_for_the_first_receipts_of_a_log[3-2-",
    "test_any_request_is_answered_and_leaves_no_trace[all of a person who lent half-",
    "core/test_boundary.py::test_a_world_at_the_edge_trains_and_is_measured[one_record_shared",
    "test_secure_sums.py::test_a_round_goes_on_without_a_silo_that_is_lost[6-",
    "test_asked_again.py::test_a_refusal_counts_only_if_the_server_went_on_after_it[3]",
)
KEPT = ("[FedShare]", "[Gram]", "[FineTune]", "[F3CRec]", "replace-server.safetensors-0-before]")
"""Of these, the cases that run every time."""


FIRST = (
    "tests/contract/test_every_method.py", "tests/service/", "tests/docs/", "tests/data/",
    "tests/flower/", "tests/stories/", "tests/papers/", "tests/contract/",
)  # fmt: skip
"""What runs first. pytest itself sorts by name, whatever the order of its arguments.

The longest file: of two processes one compiles nearly all kernels there and keeps them on the disk,
while the other runs tests that need few of them. Then what is long, so that both end together.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and mark repetitions as slow."""
    items.sort(key=lambda item: [not item.nodeid.startswith(name) for name in FIRST])
    for item in items:
        words = item.nodeid
        if not words.endswith(KEPT) and any(name in words for name in REPETITIONS):
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


@pytest.fixture(scope="session", autouse=True)
def quick():
    """Read the commands' signatures once, and wait for no disk: a test ends before a power cut.

    Tests of what reaches the disk, and when, put their own function there or watch a process.
    """
    from typer.main import get_command

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        patch.setattr("os.fsync", lambda handle: os.fstat(handle) and None)
        yield


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


@pytest.fixture(scope="session")
def homes(tmp_path_factory) -> tuple[Path, Iterator[int]]:
    """A folder for homes, and a number for each test: pytest reads all names to find a new one."""
    return tmp_path_factory.mktemp("homes"), count()


@pytest.fixture(autouse=True)
def home_of_the_test(homes, monkeypatch) -> Path:
    """Return the home of a test: its keys, data and ledger are never the user's own."""
    folder, number = homes
    (mine := folder / str(next(number))).mkdir()
    monkeypatch.setenv("RESCIND_HOME", str(mine))
    return mine
