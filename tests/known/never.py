"""What must never happen to a checkpoint, and the test of each. The list is the design's own, so no report is named."""

from __future__ import annotations

from typing import Final

from tests.known.places import NEVER
from tests.known.rows import Row, covered

ROWS: Final[tuple[Row, ...]] = (
    covered(1, "", "a flipped byte loads", NEVER + "test_a_damaged_checkpoint_is_refused_by_file_and_leaves_the_model_untouched"),
    covered(
        2,
        "",
        "a failed writer is reported as success",
        NEVER + "test_a_rank_that_cannot_write_fails_the_save_on_every_rank_and_nothing_is_committed",
    ),
    covered(3, "", "a kill during a save damages an older step", NEVER + "test_a_kill_during_a_save_damages_no_older_step"),
    covered(4, "", "a dtype is cast", NEVER + "test_a_program_that_differs_is_refused_and_never_cast_or_skipped"),
    covered(5, "", "an extra or missing key is ignored", NEVER + "test_a_program_that_differs_is_refused_and_never_cast_or_skipped"),
    covered(
        6,
        "",
        "one rank's value stands for all",
        NEVER + "test_every_rank_gets_its_own_values_back",
        NEVER + "test_one_ranks_value_cannot_stand_for_all",
    ),
    covered(7, "", "replicas that went apart are mixed", NEVER + "test_replicas_that_went_apart_are_named_and_never_mixed"),
    covered(8, "", "a snapshot is torn by the next step", NEVER + "test_what_changes_right_after_staging_does_not_reach_the_checkpoint"),
    covered(9, "", "a value under a number as key lands in the wrong slot", NEVER + "test_a_number_as_a_key_stays_a_number"),
    covered(10, "", "a plan of another structure is used", NEVER + "test_a_changed_structure_never_meets_an_old_plan"),
    covered(11, "", "a missing shard is read as old values", NEVER + "test_a_missing_shard_is_never_read_as_old_values"),
    covered(12, "", "a tensor without dimensions is lost", NEVER + "test_a_tensor_without_dimensions_keeps_its_value"),
    covered(
        13,
        "",
        "code is run from metadata",
        NEVER + "test_no_file_of_a_checkpoint_can_run_code",
        NEVER + "test_nothing_here_can_run_code_from_a_file",
    ),
    covered(14, "", "a dead persister stays dead", NEVER + "test_a_dead_persister_is_replaced_and_the_next_save_works"),
    covered(
        15,
        "",
        "one hung rank stalls all beyond the deadline",
        NEVER + "test_a_rank_that_hangs_costs_this_save_alone_and_only_until_the_deadline",
    ),
    covered(16, "", "overlapping saves corrupt each other", NEVER + "test_two_saves_never_overlap"),
    covered(
        17,
        "",
        "retention deletes the newest good one or a resume target",
        NEVER + "test_retention_leaves_the_newest_verified_one_and_the_resume_point",
    ),
    covered(18, "", "a zombie deletes anything", NEVER + "test_a_zombie_deletes_nothing"),
    covered(
        19,
        "",
        "the newest is chosen by file times or by a name",
        NEVER + "test_the_newest_is_never_chosen_by_file_times",
        NEVER + "test_the_newest_is_never_chosen_by_a_name",
        NEVER + "test_a_copy_under_another_steps_name_is_not_that_step",
    ),
    covered(20, "", "two jobs share a run", NEVER + "test_two_jobs_cannot_share_a_run"),
    covered(21, "", "a zombie's checkpoint is chosen", NEVER + "test_what_a_zombie_commits_after_a_rollback_is_abandoned"),
    covered(
        22,
        "",
        "a lost ledger starts from zero",
        NEVER + "test_a_run_that_lost_its_fences_does_not_start_from_nothing",
        NEVER + "test_an_operator_that_lost_its_ledger_cannot_start_a_run_from_nothing",
    ),
)
