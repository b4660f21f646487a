"""Training that did not go on as it was, and checkpoints that were lost on the way: public reports about training runtimes, one a row."""

from __future__ import annotations

from typing import Final

from tests.known.rows import Row, covered, impossible, limited

_ACCIDENTS: Final = "tests/checkpoint/test_accidents.py::"
_ENGINE: Final = "tests/checkpoint/test_engine.py::"
_EQUALITY: Final = "tests/runtime/test_equality.py::"
_EQUAL: Final = _EQUALITY + "test_every_leaf_of_every_rank_is_bitwise_equal_after_two_kills"
_GATHER: Final = "tests/state/test_gather.py::"
_KILLED: Final = "tests/checkpoint/test_killed.py::"
_NAMES: Final = "tests/state/test_names_and_model.py::"
_NEVER: Final = "tests/checkpoint/test_never.py::"
_OPTIMIZER: Final = "tests/state/test_optimizer.py::"
_REPORTED: Final = "tests/runtime/test_reported_elsewhere.py::"
_REPORTED_SAVES: Final = "tests/checkpoint/test_reported_elsewhere.py::"
_RESTORE: Final = "tests/checkpoint/test_restore.py::"
_RUN: Final = "tests/runtime/test_run.py::"
_DATA: Final = "tests/state/test_data.py::"
_POSIX: Final = "tests/store/test_posix.py::"
_TOGETHER: Final = "tests/runtime/test_together.py::"

ROWS: Final[tuple[Row, ...]] = (
    covered(
        1,
        "huggingface/transformers#17032",
        "random numbers are not saved at the end of an epoch",
        _EQUAL,
        _RUN + "test_a_run_that_is_resumed_at_its_end_has_the_random_numbers_of_that_end",
    ),
    covered(
        2,
        "NVIDIA/Megatron-LM#6858",
        "ranks take up another rank's random numbers",
        _EQUALITY + "test_ranks_draw_different_random_numbers",
        _NEVER + "test_every_rank_gets_its_own_values_back",
    ),
    covered(
        3,
        "RLinf/RLinf#1570, pytorch/pytorch#120356, radixark/miles#3187",
        "what each rank saved under one name comes back as one rank's value",
        _NEVER + "test_one_ranks_value_cannot_stand_for_all",
    ),
    covered(
        4,
        "modelscope/ms-swift#9935",
        "a seed that is set while loaders are made undoes the restored random numbers",
        _REPORTED + "test_a_seed_that_is_set_after_attach_does_not_move_the_random_numbers",
    ),
    impossible(
        5,
        "NVIDIA-NeMo/Megatron-Bridge#4893",
        "an option of later saves decides what is loaded now",
        "no option leaves anything out of a save or a load; a rank whose random numbers are missing is refused by name",
    ),
    limited(
        6,
        "fangchangma/sparse-to-dense.pytorch#19, pytorch/ignite#929",
        "random augmentations in loader workers repeat or differ after a resume",
        "docs/strict-resume.md: what workers draw repeats only if the dataset derives it from the sample's index",
    ),
    covered(
        7,
        "meta-pytorch/data#1437, meta-pytorch/data#1439",
        "a loader's state is another one after it was loaded, and an epoch is lost or ordered anew",
        "tests/state/test_stateful.py::test_two_resumes_over_epoch_ends_give_the_batches_of_an_uninterrupted_run",
    ),
    covered(
        8,
        "KempnerInstitute/KempnerForge#57",
        "right after the first resume, shifted after the second one of an epoch",
        _DATA + "test_two_resumes_give_the_batches_of_an_uninterrupted_run",
        _EQUAL,
    ),
    covered(
        9,
        "huggingface/datasets#7447",
        "with workers that stay, all epochs after a resume are too short",
        _REPORTED + "test_epochs_after_a_resume_are_whole_also_with_workers_that_stay",
    ),
    covered(
        10,
        "meta-pytorch/data#1503",
        "the step number is counted by the loop and begins at 0 again",
        _REPORTED + "test_counting_the_loop_oneself_changes_nothing",
    ),
    covered(
        11,
        "huggingface/accelerate#1451, allenai/open-instruct#681, huggingface/accelerate#2016",
        "finished batches are skipped again in every epoch, or an epoch gets the order of another",
        _REPORTED + "test_epochs_after_a_resume_are_whole_also_with_workers_that_stay",
        _DATA + "test_epochs_and_seeds_have_orders_of_their_own_and_draw_from_nobody",
        _EQUALITY + "test_every_loss_that_was_ever_computed_is_the_uninterrupted_one",
    ),
    covered(
        12,
        "kohya-ss/sd-scripts#2425, huggingface/transformers#8624",
        "steps and micro-batches are mixed up under gradient accumulation",
        _RUN + "test_accumulation_counts_micro_batches_and_saves_between_steps",
        _RUN + "test_a_save_in_the_middle_of_an_accumulation_waits_for_the_optimizer",
        _EQUAL,
    ),
    covered(
        13,
        "Lightning-AI/pytorch-lightning#1772, Lightning-AI/pytorch-lightning#4655",
        "the scheduler is saved before its step, and the learning rate is one step behind",
        _REPORTED + "test_the_learning_rate_goes_on_as_if_nothing_had_been",
    ),
    covered(
        14,
        "pytorch/pytorch#119168",
        "a scheduler that is made around the restored optimizer sets the learning rate back",
        _REPORTED + "test_the_learning_rate_goes_on_as_if_nothing_had_been",
        "tests/runtime/test_bad_input.py::test_a_scheduler_that_attach_was_not_given_is_refused_at_the_first_step",
    ),
    covered(
        15,
        "pytorch/pytorch#129079",
        "what an optimizer holds beside tensors is lost",
        _OPTIMIZER + "test_an_optimizer_goes_on_bit_for_bit_in_a_new_process",
        _EQUAL,
    ),
    covered(
        16,
        "meta-pytorch/torchtune#2553",
        "a key that the scheduler adds to the groups is missing at the load",
        _REPORTED + "test_the_learning_rate_goes_on_as_if_nothing_had_been",
    ),
    covered(
        17,
        "huggingface/transformers#34053, ultralytics/ultralytics#22189, open-mmlab/mmcv#1013",
        "the gradient scaler begins anew, overflows, and steps are skipped",
        _EQUAL,
    ),
    covered(
        18,
        "facebookresearch/fairseq2#1346",
        "a scaler whose tensors are made at first use fails after a resume",
        _GATHER + "test_a_restored_script_goes_on_bit_for_bit_with_everything_it_has",
    ),
    covered(
        19,
        "ai2cm/ace#349, m2lines/Samudra#282, atomistic-machine-learning/schnetpack#785, Megvii-BaseDetection/YOLOX#1318",
        "the averaged weights begin anew, or are saved as the model",
        _REPORTED + "test_an_average_of_the_weights_goes_on_and_does_not_become_the_weights",
        _EQUAL,
    ),
    covered(
        20,
        "TensorAuto/OpenTau#185, TensorAuto/OpenTau#184",
        "full-precision weights or moments are made again from half-precision ones",
        _NEVER + "test_a_program_that_differs_is_refused_and_never_cast_or_skipped",
        _RESTORE + "test_every_dtype_comes_back_bit_for_bit_also_empty_and_without_dimension",
    ),
    covered(
        21,
        "Lightning-AI/pytorch-lightning#17025, facebookresearch/fairscale#380, pytorch/pytorch#6031",
        "parameters come in another order, and moments of the same shape land on the wrong ones",
        _OPTIMIZER + "test_slots_follow_their_parameter_when_the_order_changes",
    ),
    covered(
        22,
        "pytorch/pytorch#164929",
        "asking for the optimizer's state before its first step changes training",
        _OPTIMIZER + "test_a_save_before_the_first_step_has_no_slots_and_makes_none",
        _GATHER + "test_taking_a_snapshot_changes_nothing",
        _RUN + "test_a_save_before_the_first_step_is_step_zero_and_resumes_as_such",
    ),
    covered(
        23,
        "NVIDIA/Megatron-LM#1713",
        "the loss is not a number, but only after a resume from an asynchronous save",
        _NEVER + "test_what_changes_right_after_staging_does_not_reach_the_checkpoint",
        _RESTORE + "test_special_numbers_keep_their_bits",
    ),
    covered(
        24,
        "ymcui/Chinese-LLaMA-Alpaca#147, modelscope/ms-swift#6049, speechbrain/speechbrain#2728",
        "the loss jumps at a resume, and nobody finds out why",
        "tests/cli/doctor/test_doctor.py::test_a_generator_that_nobody_seeds_is_found",
        "tests/cli/doctor/test_diagnosis.py::test_what_differs_is_named_with_its_likely_cause",
    ),
    covered(
        25,
        "pytorch/torchtitan#961",
        "a compiled model's names change: the first resume works, the second does not",
        _NAMES + "test_names_are_the_same_whatever_wraps_the_model",
        _EQUAL,
    ),
    covered(
        26,
        "FareedKhan-dev/train-llm-from-scratch#36",
        "of several wrappers' prefixes one is taken off, no key matches, and training begins from nothing",
        _NAMES + "test_state_dict_names_become_canonical_and_only_wrappers_are_taken_out",
        _NAMES + "test_a_wrapped_part_of_a_model_is_named_by_its_place",
    ),
    covered(
        27,
        "pytorch/pytorch#148252, pytorch/pytorch#126285",
        "keys that nobody expects are ignored, also when strictness is asked for",
        _NEVER + "test_a_program_that_differs_is_refused_and_never_cast_or_skipped",
        "tests/state/test_strict.py::test_tensors_are_compared_both_ways",
    ),
    covered(
        28,
        "safetensors/safetensors#98, safetensors/safetensors#304, unslothai/unsloth#1105, hiyouga/LlamaFactory#3400",
        "tensors that share memory cannot be saved, in the middle of a run",
        _NAMES + "test_a_tied_weight_is_listed_as_an_alias_of_its_first_name",
        _RESTORE + "test_a_tie_is_saved_once_and_filled_through_its_target",
    ),
    covered(
        29,
        "huggingface/transformers#34631, huggingface/transformers#40500, NVIDIA/Isaac-GR00T#300",
        "numpy's random state cannot be unpickled safely, and the error is swallowed",
        "tests/state/test_rng.py::test_every_generator_goes_on_where_it_was_also_through_json",
        _NEVER + "test_nothing_here_can_run_code_from_a_file",
    ),
    covered(
        30,
        "pytorch/torchtitan#146",
        "something is left out of checkpoints and nothing says so",
        _NAMES + "test_a_buffer_that_is_not_persistent_is_named_among_what_is_not_saved",
        _NAMES + "test_state_that_would_be_lost_is_refused_by_name",
    ),
    covered(
        31,
        "pytorch/torchtitan#816, deepspeedai/DeepSpeed#2898, verl-project/verl#2265",
        "with another number of ranks the data position is wrong, or nothing can be loaded",
        _TOGETHER + "test_another_world_size_goes_on_when_that_is_allowed",
        _DATA + "test_another_world_size_goes_on_at_the_same_sample",
    ),
    covered(
        32,
        "deepspeedai/DeepSpeed#5475",
        "a checkpoint that was converted for another layout loads without an error and is another state",
        "tests/checkpoint/test_reshard.py::test_a_misplaced_row_shows_after_a_reshard",
    ),
    covered(
        33,
        "pytorch/pytorch#144657, Lightning-AI/pytorch-lightning#20953",
        "the writer in the background sees values of a later step",
        _NEVER + "test_what_changes_right_after_staging_does_not_reach_the_checkpoint",
    ),
    covered(
        34,
        "pytorch/torchtitan#930",
        "a load meets a save that has not ended",
        _REPORTED_SAVES + "test_whoever_resumes_while_a_save_is_in_flight_gets_the_one_before",
    ),
    covered(
        35,
        "KempnerInstitute/KempnerForge#102",
        "the name of the newest moves, and the old one goes, before the new one is durable",
        _KILLED + "test_a_kill_at_any_operation_of_a_save_leaves_a_whole_checkpoint",
        _NEVER + "test_retention_leaves_the_newest_verified_one_and_the_resume_point",
    ),
    covered(
        36,
        "ByteDance-Seed/VeOmni#1162, keras-team/keras#23609, google/orbax#605",
        "the last save fails in the background and the process ends with 0",
        _RUN + "test_a_final_save_that_fails_is_the_runs_failure",
        _RUN + "test_the_exit_code_does_not_depend_on_who_reads_the_message",
    ),
    covered(
        37,
        "verl-project/verl#8000, NVIDIA-NeMo/RL#2828",
        "the process ends without its save in flight, or an error of the shutdown hides the real one",
        _RUN + "test_a_save_in_flight_when_the_loop_is_left_is_finished_before_the_process_ends",
        _RUN + "test_how_a_process_ends_is_in_its_exit_code",
        _ENGINE + "test_a_close_or_a_wait_that_ends_first_says_so",
    ),
    covered(
        38,
        "pytorch/pytorch#170163",
        "host memory grows with every asynchronous save",
        _REPORTED_SAVES + "test_twenty_saves_take_no_more_memory_than_two",
    ),
    covered(
        39,
        "radixark/Megatron-LM#61",
        "the first save takes more memory than there is, and the kernel kills all nodes",
        _ENGINE + "test_a_stage_larger_than_memory_is_refused_with_numbers",
        _ENGINE + "test_a_rank_without_memory_fails_the_save_on_every_rank_at_once",
    ),
    covered(
        40,
        "Lightning-AI/pytorch-lightning#20012, InternLM/xtuner#1703",
        "a rank dies while a step is saved again, and the directory is a mixture of two saves",
        _KILLED + "test_a_kill_at_any_operation_of_a_save_leaves_a_whole_checkpoint",
        "tests/store/test_contract.py::test_a_second_try_does_not_meet_the_first_ones_files",
    ),
    covered(
        41,
        "NVIDIA/nvidia-resiliency-ext#359",
        "the marker is durable before the data, or the directory never is",
        _KILLED + "test_a_kill_at_any_operation_of_a_save_leaves_a_whole_checkpoint",
        _POSIX + "test_the_read_back_sees_what_the_storage_holds_now",
    ),
    covered(
        42,
        "facebookresearch/metaseq#53, huggingface/pytorch-image-models#98, rwth-i6/returnn#1444",
        "empty or half files under final names",
        _NEVER + "test_a_damaged_checkpoint_is_refused_by_file_and_leaves_the_model_untouched",
        _POSIX + "test_a_full_disk_is_named_and_no_part_of_a_file_stays",
    ),
    covered(
        43,
        "RLinf/RLinf#1469, vllm-project/speculators#739, awslabs/awsome-distributed-ai#190",
        "the newest directory is half written and is chosen",
        _ACCIDENTS + "test_a_checkpoint_damaged_before_it_was_verified_is_passed_over_for_the_older_one",
        _RUN + "test_a_damaged_checkpoint_is_passed_over_for_the_next_older_one",
    ),
    impossible(
        44,
        "pytorch/pytorch#144752",
        "fsync on an object store's stream ends the final commit",
        "durability is a method of each store: the S3 one opens no stream and calls no fsync, and both pass one contract suite",
    ),
    covered(
        45,
        "huggingface/transformers#20988, huggingface/transformers#28015, huggingface/transformers#11421, huggingface/diffusers#5338",
        "every node deletes, the newest is deleted, or one too many",
        _NEVER + "test_a_zombie_deletes_nothing",
        _NEVER + "test_retention_leaves_the_newest_verified_one_and_the_resume_point",
        "tests/checkpoint/test_retention.py::test_what_must_stay_is_never_proposed_and_a_second_look_proposes_nothing",
    ),
    covered(
        46,
        "intelligent-machine-learning/dlrover#1065",
        "no marker is found, so training begins from random weights",
        _NEVER + "test_a_run_that_lost_its_fences_does_not_start_from_nothing",
        _NEVER + "test_an_operator_that_lost_its_ledger_cannot_start_a_run_from_nothing",
    ),
    covered(
        47,
        "intelligent-machine-learning/dlrover#1069",
        "the trainer writes into the memory that the saver reads",
        _NEVER + "test_two_saves_never_overlap",
        "tests/checkpoint/test_stage.py::test_generations_take_turns_so_that_the_last_one_stays_whole",
    ),
    impossible(
        48,
        "CentaurusInfra/alnair#71, pytorch/pytorch#16979",
        "a container's /dev/shm is too small, or segments of the dead fill it",
        "the stage is an anonymous memory file: it has no name, lies outside /dev/shm and goes with the last process that holds it",
    ),
    covered(
        49,
        "sml2h3/dddd_trainer#36, bghira/SimpleTuner#2353, mlfoundations/open_lm#154",
        "a full disk ends training and damages what it resumes from",
        _POSIX + "test_a_full_disk_is_named_and_no_part_of_a_file_stays",
        _NEVER + "test_a_rank_that_cannot_write_fails_the_save_on_every_rank_and_nothing_is_committed",
    ),
    covered(
        50,
        "marin-community/marin#9213, marin-community/marin#9209",
        "one rank's storage is slow or silent, and all others wait in a barrier until they are killed",
        _NEVER + "test_a_rank_that_hangs_costs_this_save_alone_and_only_until_the_deadline",
        "tests/checkpoint/test_persister.py::test_a_store_that_hangs_costs_this_save_and_is_said",
        "tests/store/test_hostile.py::test_a_silent_server_costs_its_time_and_no_more",
    ),
    covered(
        51,
        "NVIDIA/Megatron-LM#1435, ray-project/ray#47939",
        "one save that fails ends training",
        _ACCIDENTS + "test_five_failed_saves_in_a_row_are_an_error_in_the_training_thread",
        "tests/runtime/test_bad_input.py::test_a_limit_of_the_process_costs_the_save_and_says_so",
    ),
    covered(
        52,
        "HazyResearch/metal#128, meta-pytorch/torchtune#481, OpenTabular/DeepTab#411",
        "two runs share a directory and load each other's weights",
        _NEVER + "test_two_jobs_cannot_share_a_run",
        "tests/checkpoint/test_opening.py::test_another_jobs_run_is_not_entered_without_the_operators_word",
    ),
    covered(
        53,
        "att/tegu#22, ray-project/ray#3781, microsoft/agent-framework#8513",
        "the newest by file time is another one after a copy",
        _NEVER + "test_the_newest_is_never_chosen_by_file_times",
        _NEVER + "test_the_newest_is_never_chosen_by_a_name",
    ),
    covered(
        54,
        "hiyouga/LlamaFactory#655",
        "two nodes resume at different steps from their own disks",
        _TOGETHER + "test_damage_that_only_one_rank_reads_sends_all_to_the_next_older_checkpoint",
        "tests/checkpoint/test_local.py::test_what_another_nodes_ranks_wrote_comes_from_the_store",
    ),
    impossible(
        55,
        "rwth-i6/returnn#1345, huggingface/accelerate#1444",
        "at a resume all ranks load to the first device, which is full then",
        "bytes are proven in host memory and copied into each rank's own live tensors; no tensor is made on the device it was saved from",
    ),
)
