"""What goes wrong with pictures of models in notebooks, each symptom with the tests that fall over when it shows."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SYMPTOMS: dict[str, tuple[str, ...]] = {
    # -- files and pages
    "a notebook grows by megabytes because every widget carries its code": (
        "widgets/test_static_files.py::test_the_part_sent_with_every_display_is_small",
        "labs/test_notebooks_in_step.py::test_the_notebook_keeps_to_its_budgets",
        "labs/test_notebook_upkeep.py::test_only_what_a_second_run_repeats_is_kept",
    ),
    "reopened without a kernel there is an error instead of a picture": (
        "e2e/test_lab_in_browser.py::test_the_stored_pictures_show_before_anything_runs",
        "widgets/test_panel.py::test_freezing_puts_the_picture_into_the_same_output",
    ),
    "a front end without widgets shows raw data": (
        "widgets/test_panel.py::test_the_text_of_a_panel_has_no_ids",
        "widgets/test_dashboard.py::test_the_still_of_a_dashboard_holds_every_panel",
    ),
    "a package that is missing gives an error about a model class": (
        "labs/test_lab_command.py::test_without_jupyterlab_the_command_that_installs_it_is_named",
        "labs/test_lab_command.py::test_another_environments_kernel_is_refused",
    ),
    "the network is closed and the page stays blank": (
        "widgets/test_static_files.py::test_no_code_knows_an_address",
        "e2e/test_lab_in_browser.py::test_all_cells_run",
    ),
    "the host of a notebook strips scripts and styles, and the picture with them": (
        "views/test_every_view.py::test_the_picture_is_plain_svg_without_what_pages_strip",
    ),
    "a picture cannot be read in the dark theme": (
        "views/test_every_view.py::test_labels_can_be_read_in_both_themes",
        "widgets/test_canvas_browser.py::test_the_pages_theme_is_followed",
        "e2e/test_panels_in_browser.py::test_the_canvas_follows_the_theme_and_stays_readable",
    ),
    "a frame to a local port shows nothing on a remote machine": (
        "widgets/test_static_files.py::test_no_frame_or_port_is_opened",
    ),
    # -- live updates
    "updates from a thread do not arrive": (
        "widgets/test_pump.py::test_updates_arrive_while_a_cell_blocks",
        "widgets/test_panel.py::test_watching_paints_from_within_the_cell",
        "e2e/test_panels_in_browser.py::test_a_typed_prompt_streams_and_the_block_map_follows",
    ),
    "messages per token drown the channel to the page": (
        "widgets/test_pump.py::test_a_flood_stays_within_messages_and_bytes_and_every_panel_has_its_turn",
        "widgets/test_pump.py::test_a_scene_that_did_not_change_is_not_sent_again",
    ),
    "running a cell again leaks widgets and connections": (
        "widgets/test_panel.py::test_running_a_cell_again_leaks_no_widget",
        "e2e/test_panels_in_browser.py::test_running_a_cell_again_leaves_no_comm_behind",
    ),
    "a long sequence hangs the page": (
        "views/test_every_view.py::test_a_long_trace_is_drawn_in_time_and_within_bounds",
        "views/test_view_attention.py::test_a_long_sequence_is_pooled_small_and_fast",
        "widgets/test_scene_json.py::test_marks_that_do_not_fit_are_counted_in_a_note",
    ),
    "a server cannot be started where a loop runs, or its port is in use": (
        "lab/test_serve_in_a_notebook.py::test_servers_start_from_a_running_loop_again_and_again",
        "labs/test_lab_command.py::test_a_port_in_use_is_refused_before_anything_is_copied",
    ),
    # -- inside the model
    "tokens of the same text fall into one row or column": (
        "views/test_view_attention.py::test_repeated_tokens_keep_their_own_columns",
    ),
    "attention is not there, or another kernel than the served one is shown": (
        "probes/test_capture_attention.py::test_weights_are_those_of_eager_attention",
        "probes/test_probes_change_nothing.py::test_tokens_and_logprobs_are_bit_identical_with_and_without",
    ),
    "heads that share keys are counted wrongly": (
        "probes/test_capture_attention.py::"
        "test_keys_and_values_are_kept_once_per_kv_head_also_where_the_cache_served_them",
        "views/test_view_attention_heads.py::test_heads_that_share_a_kv_head_are_grouped",
    ),
    "what is captured fills the memory": (
        "probes/test_probes_change_nothing.py::test_the_estimate_covers_what_is_kept_and_its_number_is_enough",
        "probes/test_probes_change_nothing.py::test_an_open_length_stops_at_the_budget_and_says_so",
    ),
    "hooks stay behind after an error, or take a user's own with them": (
        "probes/test_probes_change_nothing.py::test_hooks_are_gone_after_a_step_that_raised",
        "probes/test_probes_change_nothing.py::test_a_users_hook_keeps_working_and_stays",
    ),
    "the lens applies the wrong norm": (
        "probes/test_logit_lens.py::test_the_last_row_is_the_models_own_logits",
        "views/test_view_lens.py::test_the_last_row_is_what_greedy_decoding_chose",
    ),
    "a prefix hit shifts what is captured, or a changed request poisons the cache": (
        "probes/test_captures_in_trace.py::test_captured_and_cached_positions_are_all_of_the_prompt",
        "probes/test_interventions.py::test_nothing_of_it_reaches_the_prefix_cache_or_comes_from_it",
        "views/test_view_attention.py::test_cached_keys_are_hatched_and_their_queries_absent",
    ),
    # -- text
    "half a character is shown, and spaces cannot be seen": (
        "engine/test_detokenizer.py::test_each_character_is_emitted_with_its_last_byte",
        "views/test_view_token_strip.py::test_bytes_of_a_character_are_held_back_until_its_last",
    ),
    "a hidden first token shifts every position": (
        "lab/test_first_tokens.py::test_a_prompt_begins_with_one_token_of_that_kind_and_the_trace_shows_it",
        "views/test_view_token_strip.py::test_every_token_of_the_trace_is_drawn_once_with_its_id_text_and_source",
    ),
    "text of a prompt or a model becomes markup": (
        "widgets/test_static_files.py::test_text_never_becomes_markup",
        "views/test_view_token_strip.py::test_text_of_others_is_shown_not_obeyed",
        "widgets/test_scene_json.py::test_text_cannot_break_its_line_or_its_direction",
    ),
    # -- repeating
    "outputs of a notebook differ for no reason, or nobody compares them": (
        "labs/test_notebooks_run.py::test_a_stored_notebook_repeats_its_outputs",
        "labs/test_notebooks_run.py::test_text_is_compared_and_a_picture_must_be_there",
        "labs/test_notebooks_in_step.py::test_the_notebook_keeps_to_its_budgets",
    ),
    "the same seed gives other numbers on another processor": (
        "views/test_every_view.py::test_a_second_run_has_the_same_text",
    ),
    "a picture shows what was never recorded": (
        "views/test_every_view.py::test_other_requests_give_another_picture_text_and_table",
        "views/test_every_view.py::test_a_trace_without_events_is_told_and_how_to_record_some",
    ),
    "a class without a network waits for a hub": (
        "models/test_load.py::test_hub_is_used_only_when_asked_for",
        "views/test_every_view.py::test_a_saved_trace_gives_the_same_pictures_without_torch",
    ),
}


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the test functions of a file, without importing it."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions))


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_every_symptom_has_tests_that_exist(symptom):
    assert SYMPTOMS[symptom]
    for name in SYMPTOMS[symptom]:
        file, function = name.split("::")
        assert function in functions_of(TESTS / file), f"{name} is gone"
