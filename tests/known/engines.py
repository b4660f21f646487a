"""Checkpoint engines that lost, mixed or invented state: public reports, one a row."""

from __future__ import annotations

from typing import Final

from tests.known.rows import Row, covered, impossible

_ACCIDENTS: Final = "tests/checkpoint/test_accidents.py::"
_ENGINE: Final = "tests/checkpoint/test_engine.py::"
_EQUALITY: Final = "tests/runtime/test_equality.py::"
_EQUAL: Final = _EQUALITY + "test_every_leaf_of_every_rank_is_bitwise_equal_after_two_kills"
_EXPORT: Final = "tests/checkpoint/test_export.py::"
_HOSTILE: Final = "tests/store/test_hostile.py::"
_KILLED: Final = "tests/checkpoint/test_killed.py::"
_NEVER: Final = "tests/checkpoint/test_never.py::"
_DAMAGED: Final = _NEVER + "test_a_damaged_checkpoint_is_refused_by_file_and_leaves_the_model_untouched"
_DIFFERS: Final = _NEVER + "test_a_program_that_differs_is_refused_and_never_cast_or_skipped"
_OPTIMIZER: Final = "tests/state/test_optimizer.py::"
_PERSISTER: Final = "tests/checkpoint/test_persister.py::"
_REPORTED: Final = "tests/checkpoint/test_reported_elsewhere.py::"
_REPORTED_TRAINING: Final = "tests/runtime/test_reported_elsewhere.py::"
_RESTORE: Final = "tests/checkpoint/test_restore.py::"
_RUN: Final = "tests/runtime/test_run.py::"
_TOGETHER: Final = "tests/runtime/test_together.py::"

ROWS: Final[tuple[Row, ...]] = (
    covered(
        1,
        "pytorch/pytorch#191391",
        "a writer thread fails and the save is said to be good",
        _NEVER + "test_a_rank_that_cannot_write_fails_the_save_on_every_rank_and_nothing_is_committed",
    ),
    covered(2, "pytorch/pytorch#187138", "another dtype is loaded by a silent cast", _DIFFERS),
    covered(
        3,
        "pytorch/pytorch#164929",
        "reading the optimizer's state makes a step of it",
        _OPTIMIZER + "test_a_save_before_the_first_step_has_no_slots_and_makes_none",
        "tests/state/test_gather.py::test_taking_a_snapshot_changes_nothing",
    ),
    covered(4, "pytorch/pytorch#148252", "keys that nobody expects are passed over in silence", _DIFFERS),
    covered(
        5,
        "pytorch/pytorch#126881",
        "state that the program makes later is not loaded, in silence",
        _OPTIMIZER + "test_an_optimizer_goes_on_bit_for_bit_in_a_new_process",
        _DIFFERS,
    ),
    covered(
        6,
        "pytorch/pytorch#192485",
        "an export fails for whole numbers and booleans",
        _EXPORT + "test_every_dtype_and_shape_is_loaded_back_equal",
    ),
    covered(
        7,
        "pytorch/pytorch#192202",
        "slots of frozen parameters are dropped",
        _REPORTED_TRAINING + "test_slots_of_parameters_that_were_frozen_meanwhile_are_kept",
    ),
    covered(
        8,
        "pytorch/pytorch#192224",
        "missing optimizer state ends in an error that names nothing",
        _DIFFERS,
        _DAMAGED,
    ),
    covered(
        9,
        "pytorch/pytorch#192225",
        "an optimizer without slots has empty ones after the load",
        _REPORTED_TRAINING + "test_an_optimizer_without_slots_gains_none",
    ),
    covered(
        10,
        "pytorch/pytorch#189308",
        "metadata is unpickled, so a checkpoint can run code",
        _NEVER + "test_no_file_of_a_checkpoint_can_run_code",
    ),
    covered(
        11,
        "pytorch/pytorch#170163",
        "host memory grows with every save",
        _REPORTED + "test_twenty_saves_take_no_more_memory_than_two",
        _ENGINE + "test_preparing_takes_the_memory_of_both_generations_before_the_first_save_and_keeps_it",
    ),
    covered(
        12,
        "pytorch/pytorch#177887",
        "what a save returns lacks fields that its documentation promises",
        _ENGINE + "test_every_rank_is_told_of_commit_and_verification",
        _ENGINE + "test_the_manifest_says_where_in_training_it_was_taken",
    ),
    impossible(
        13,
        "pytorch/pytorch#142396",
        "fsync on object streams breaks saves",
        "durability is a method of each store: the S3 one opens no stream and calls no fsync",
    ),
    covered(
        14,
        "pytorch/pytorch#146157",
        "a new version of an optimizer has one more group key, and older checkpoints cannot be loaded",
        _REPORTED_TRAINING + "test_a_group_key_that_the_checkpoint_does_not_have_is_named_and_can_be_allowed",
    ),
    covered(
        15,
        "pytorch/pytorch#188346",
        "a load unties tied weights",
        _RESTORE + "test_a_tie_is_saved_once_and_filled_through_its_target",
        "tests/cli/checkpoints/test_from_pretrained.py::test_from_pretrained_gives_the_trained_model_with_its_tied_weights",
    ),
    covered(
        16,
        "pytorch/torchtitan#1136",
        "the loss differs after a resume when a dimension cannot be divided by the ranks",
        _EQUAL,
        "tests/checkpoint/test_reshard.py::test_blocks_come_back_in_another_layout",
    ),
    covered(
        17,
        "pytorch/torchtitan#811",
        "with more or fewer ranks the loader's state is missing or ignored",
        _TOGETHER + "test_another_world_size_goes_on_when_that_is_allowed",
        "tests/state/test_data.py::test_another_world_size_goes_on_at_the_same_sample",
    ),
    covered(
        18,
        "pytorch/torchtitan#930",
        "a load right after an asynchronous save fails",
        _REPORTED + "test_whoever_resumes_while_a_save_is_in_flight_gets_the_one_before",
    ),
    covered(19, "pytorch/torchtitan#4011", "contents have no digests, and one metadata file makes a checkpoint valid", _DAMAGED),
    covered(
        20,
        "pytorch/torchtitan#4197",
        "retention counts directories that no save finished",
        _NEVER + "test_retention_leaves_the_newest_verified_one_and_the_resume_point",
        "tests/checkpoint/test_cleaning.py::test_what_an_older_attempt_left_in_flight_goes_after_a_day_and_our_own_stays",
    ),
    covered(
        21,
        "KempnerInstitute/KempnerForge#102",
        "the name of the newest moves before the data is durable",
        _KILLED + "test_a_kill_at_any_operation_of_a_save_leaves_a_whole_checkpoint",
    ),
    impossible(
        22,
        "KempnerInstitute/KempnerForge#104",
        "the saving thread and the training share a process group, and both hang",
        "saves run in another process, over connections of their own, and what ranks agree on has a process group of its own",
    ),
    covered(
        23,
        "InternLM/xtuner#1859",
        "thousands of tensors need as many descriptors, which run out in the middle of a run",
        _REPORTED + "test_thousands_of_tensors_need_no_descriptor_each",
    ),
    covered(
        24,
        "InternLM/xtuner#1852",
        "ranks decide differently whether to try again, and hang",
        _NEVER + "test_a_rank_that_cannot_write_fails_the_save_on_every_rank_and_nothing_is_committed",
        _ENGINE + "test_a_rank_without_memory_fails_the_save_on_every_rank_at_once",
    ),
    covered(
        25,
        "NVIDIA/Megatron-LM#5281",
        "a damaged copy on a local disk is loaded, and the job restarts for ever",
        "tests/checkpoint/test_local.py::test_a_local_byte_that_changed_is_passed_over_and_said",
    ),
    covered(
        26,
        "NVIDIA/Megatron-LM#6858",
        "nearly all ranks take up a wrong random stream",
        _NEVER + "test_every_rank_gets_its_own_values_back",
        _EQUALITY + "test_ranks_draw_different_random_numbers",
    ),
    impossible(
        27,
        "NVIDIA/Megatron-LM#1873",
        "the plans of all ranks are gathered in one place, whose memory grows with them",
        "no plan is gathered: each rank works out its own part, and the committer gets one index per rank, as text, in host memory",
    ),
    covered(
        28,
        "NVIDIA/Megatron-LM#1435",
        "one save that fails ends the job",
        _ACCIDENTS + "test_five_failed_saves_in_a_row_are_an_error_in_the_training_thread",
        "tests/runtime/test_beats_without_rtj_run.py::test_a_save_that_fails_is_told_and_taken_back_by_the_next_verified_one",
    ),
    covered(
        29,
        "NVIDIA-NeMo/Megatron-Bridge#4678",
        "the only whole checkpoint is deleted before the new one is durable",
        _NEVER + "test_retention_leaves_the_newest_verified_one_and_the_resume_point",
        "tests/checkpoint/test_retention.py::test_what_must_stay_is_never_proposed_and_a_second_look_proposes_nothing",
    ),
    covered(
        30,
        "NVIDIA-NeMo/Megatron-Bridge#5842",
        "the late result of an older save is taken for that of the present one",
        _REPORTED + "test_a_save_that_failed_is_never_chosen_and_does_not_block_its_step",
        _PERSISTER + "test_a_persister_that_a_rank_lost_sight_of_is_ended_before_another_one_touches_its_files",
        _NEVER + "test_what_a_zombie_commits_after_a_rollback_is_abandoned",
    ),
    covered(
        31,
        "NVIDIA-NeMo/Megatron-Bridge#5100",
        "random numbers cannot be restored after the layout changed",
        _TOGETHER + "test_another_world_size_goes_on_when_that_is_allowed",
        "tests/state/test_gather.py::test_a_rank_whose_random_numbers_were_not_saved_is_told_so",
    ),
    covered(
        32,
        "NVIDIA-NeMo/Automodel#1093",
        "an export takes more memory than there is",
        _REPORTED + "test_an_export_holds_a_part_of_the_model_at_a_time",
    ),
    covered(
        33,
        "NVIDIA/nvidia-resiliency-ext#373",
        "one slow disk of the storage stalls everybody until the time-out",
        _PERSISTER + "test_a_store_that_hangs_costs_this_save_and_is_said",
        "tests/checkpoint/test_local.py::test_a_disk_that_hangs_is_waited_for_once",
    ),
    covered(
        34,
        "deepspeedai/DeepSpeed#6691",
        "a resume begins from nothing and says nothing",
        _NEVER + "test_a_run_that_lost_its_fences_does_not_start_from_nothing",
        _RUN + "test_when_every_checkpoint_is_damaged_it_ends_instead_of_beginning_anew",
    ),
    covered(
        35,
        "deepspeedai/DeepSpeed#7546, deepspeedai/DeepSpeed#7601",
        "files of some ranks are missing and nobody notices until the load",
        _RESTORE + "test_indexes_that_do_not_make_up_a_checkpoint_are_told",
        "tests/checkpoint/test_reshard.py::test_a_shard_that_is_not_covered_is_damage",
        _NEVER + "test_a_missing_shard_is_never_read_as_old_values",
    ),
    covered(
        36,
        "Lightning-AI/pytorch-lightning#20953",
        "an asynchronous save writes the live tensors",
        _NEVER + "test_what_changes_right_after_staging_does_not_reach_the_checkpoint",
    ),
    covered(
        37,
        "Lightning-AI/pytorch-lightning#19970",
        "a save that is killed leaves a damaged file",
        _KILLED + "test_a_kill_at_any_operation_of_a_save_leaves_a_whole_checkpoint",
        _KILLED + "test_kills_at_random_times_lose_nothing_that_was_verified",
    ),
    covered(
        38,
        "Lightning-AI/pytorch-lightning#21253",
        "a save goes through the directory for temporary files, which is too small",
        _REPORTED + "test_nothing_is_staged_through_the_directory_for_temporary_files",
    ),
    covered(
        39,
        "awslabs/s3-connector-for-pytorch#295",
        "names with special characters are not found when they are renamed",
        _REPORTED + "test_a_store_may_have_any_name_that_a_directory_can_have",
        "tests/contract/test_place.py::test_a_store_is_taken_apart_and_put_together_again",
    ),
    covered(
        40,
        "google/orbax#605",
        "nobody notices a failed save, and a later cleaning trips over what is not there",
        _ACCIDENTS + "test_five_failed_saves_in_a_row_are_an_error_in_the_training_thread",
        "tests/checkpoint/test_cleaning.py::test_a_deletion_that_stopped_half_way_leaves_no_checkpoint_and_is_finished_later",
    ),
    covered(
        41,
        "AI-Hypercomputer/maxtext#5260",
        "the step of a failed save is chosen for a restore and cannot be saved again",
        _REPORTED + "test_a_save_that_failed_is_never_chosen_and_does_not_block_its_step",
    ),
    covered(
        42,
        "keras-team/keras#23609",
        "closing drops the error of the last save",
        _RUN + "test_a_final_save_that_fails_is_the_runs_failure",
        _RUN + "test_the_exit_code_does_not_depend_on_who_reads_the_message",
    ),
    covered(
        43,
        "boto/s3transfer#327, boto/botocore#3352",
        "checksums that are sent by default break servers that speak almost S3",
        _HOSTILE + "test_a_server_that_checks_nothing_gets_no_checksums",
    ),
    covered(
        44,
        "mlcommons/storage#593",
        "parts of an upload are missing, and the size says that all are there",
        _HOSTILE + "test_a_part_that_the_server_drops_is_found_by_the_checksum_of_the_whole",
        _HOSTILE + "test_a_part_that_is_dropped_unseen_shows_when_the_file_is_read_back",
    ),
    covered(45, "safetensors/safetensors#220", "the file format has no checksum, so a changed byte loads", _DAMAGED),
)
