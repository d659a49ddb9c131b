"""Known pitfalls of the two wire protocols, each with the test that falls over when it is stepped into."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

PITFALLS: dict[str, tuple[str, ...]] = {
    # -- putting a message together
    "fragments of a tool's arguments are joined as text; the input of the block's start is no base": (
        "client/test_accumulate.py::test_arguments_are_the_same_wherever_they_were_cut",
        "client/test_accumulate.py::test_input_of_the_start_is_not_a_base",
        "api/test_anthropic_replies.py::test_blocks_of_all_kinds_in_their_order",
    ),
    "a tool without arguments sends empty fragments only, and means an empty object": (
        "client/test_accumulate.py::test_no_arguments_are_an_empty_object",
        "api/test_anthropic_replies.py::test_arguments_of_a_call",
        "api/test_openai_encode.py::test_a_call_without_arguments_before_another_that_is_cut_off_is_complete",
    ),
    "max_tokens may cut a tool call, which must not be run then": (
        "gateway/test_engine_backend.py::test_a_call_cut_by_max_tokens_is_left_incomplete",
        "client/test_accumulate.py::test_call_at_the_end_of_a_cut_answer_is_never_executable",
        "client/test_agent.py::test_a_tool_call_that_was_cut_off_is_never_run",
    ),
    "a signature replaces the one before it and is not appended": (
        "client/test_accumulate.py::test_signature_is_replaced",
    ),
    "usage in a stream is cumulative: the last count holds, and a missing one keeps the start's": (
        "client/test_accumulate.py::test_usage_is_a_snapshot_and_missing_counts_stay",
    ),
    "input_tokens leaves out what the cache served, prompt_tokens does not": (
        "gateway/test_usage_ledger.py::test_both_views_of_one_conversation_add_up_with_and_without_cache",
        "gateway/test_usage_ledger.py::test_thinking_is_counted_alike_in_both_protocols",
    ),
    # -- reading a stream
    "an event may be cut anywhere, also inside a character or a line end": (
        "api/test_sse_parser.py::test_any_cuts_give_the_same",
        "api/test_sse_parser.py::test_every_piece_size_gives_the_same",
        "client/test_client_stream.py::test_pieces_of_any_size_give_the_same_message",
        "gateway/test_faults.py::test_a_split_stream_arrives_byte_by_byte_and_is_the_same",
    ),
    "line ends may be LF, CRLF or CR, and CRLF may come in two pieces": (
        "api/test_sse_parser.py::test_same_as_the_standards_algorithm",
        "api/test_sse_parser.py::test_line_feed_after_carriage_return_in_the_next_piece_ends_nothing",
    ),
    "comments, retry, id, events without data, fields without colon and unknown fields are no data": (
        "api/test_sse_parser.py::test_single_rules",
        "api/test_sse_parser.py::test_ids_last_until_replaced_and_those_with_nul_are_ignored",
        "api/test_sse_parser.py::test_retry_takes_nothing_but_reasonable_digits",
        "gateway/test_wire_streams.py::test_frames_hold_nothing_that_trips_a_client",
    ),
    "a byte order mark is skipped at the start only, and never sent": (
        "api/test_sse_parser.py::test_single_rules",
        "gateway/test_wire_streams.py::test_frames_hold_nothing_that_trips_a_client",
    ),
    "data of several lines is joined, and U+2028 and U+0085 end no line": (
        "api/test_sse_parser.py::test_single_rules",
        "api/test_sse_parser.py::test_reads_what_our_writer_writes",
    ),
    "a last event without its blank line was cut off": (
        "api/test_sse_parser.py::test_close_tells_whether_an_event_was_cut",
    ),
    "a stream that ends cleanly but early is incomplete, not a short answer": (
        "client/test_client_stream.py::test_clean_end_without_the_end_marker_is_incomplete",
        "client/test_lifecycle.py::test_complete_only_after_message_stop",
        "client/test_accumulate_chunks.py::test_not_complete_without_the_end_marker",
        "conformance/test_conformance_anthropic.py::test_a_stream_that_is_cut_is_an_error",
    ),
    "blocks left open, deltas of the wrong kind and gaps between indices are errors": (
        "client/test_lifecycle.py::test_violations_are_named",
    ),
    "a delta before the start, or a second start, is an error": (
        "client/test_lifecycle.py::test_violations_are_named",
    ),
    # -- silence, failures, retries
    "a long prefill is silent unless the server pings": (
        "gateway/test_wire_streams.py::test_pings_carry_a_client_with_a_short_timeout_through_a_long_prefill",
        "gateway/test_wire_streams.py::test_without_pings_the_same_client_gives_up",
        "gateway/test_wire_streams.py::test_thinking_that_is_not_shown_is_no_silence",
    ),
    "a watchdog may listen for bytes or for events, which pings and comments tell apart": (
        "client/test_timeouts.py::test_silence_is_warned_of_once_then_ends_the_attempt",
        "client/test_timeouts.py::test_only_the_chosen_arrivals_end_a_silence",
        "client/test_client_stream.py::test_comments_end_a_silence_only_by_bytes",
    ),
    "an error event arrives under status 200 and is judged by its type": (
        "client/test_client_stream.py::test_error_event_is_named_by_its_type_though_the_status_was_200",
        "client/test_retry.py::test_error_inside_a_stream_is_judged_by_its_type",
    ),
    "what to do after a broken stream depends on what had come before": (
        "client/test_client_retry.py::test_break_before_the_first_block_is_retried",
        "client/test_client_retry.py::test_break_after_thinking_is_retried_and_what_was_thought_is_void",
        "client/test_client_retry.py::test_break_after_a_whole_tool_call_keeps_it",
        "client/test_client_retry.py::test_break_after_text_is_raised_with_what_came",
    ),
    "retry-after comes as seconds, fractions, dates, in the past, as nan and as infinity": (
        "client/test_retry.py::test_retry_after",
        "client/test_retry.py::test_a_wait_that_was_asked_for_passes_the_backoffs_cap_but_not_its_own",
        "client/test_retry.py::test_nonsense_falls_back_to_the_computed_delay",
    ),
    "x-should-retry overrules the status in both directions, and 529 and 413 differ": (
        "client/test_retry.py::test_statuses_that_pass",
        "client/test_retry.py::test_statuses_that_stay",
        "client/test_client_retry.py::test_server_can_forbid_and_allow_retries",
    ),
    "backoff grows to a cap, and its jitter stays in its range": (
        "client/test_retry.py::test_delays_fill_their_range_and_stay_in_it",
    ),
    "parsing partial arguments at every fragment costs the square of their length": (
        "client/test_arguments.py::test_joining_parses_every_byte_once",
        "client/test_arguments.py::test_parsing_each_time_grows_with_the_square",
    ),
    "an overflow names the numbers that a client needs to ask for less": (
        "client/test_client_on_gateway.py::test_overflow_is_repaired_with_the_servers_numbers",
        "client/test_overflow.py::test_below_the_floor_it_gives_up_and_keeps_the_numbers",
        "client/test_client_retry.py::test_an_answer_that_met_the_end_of_the_context_is_told_apart",
        "gateway/test_wire_behaviour.py::test_overflow_is_refused_with_numbers_or_served_to_the_contexts_end",
    ),
    # -- the prompt cache
    "more than four breakpoints, a long one after a short one, and one on thinking or empty text are refused": (
        "api/test_anthropic_refusals.py::test_a_field_that_breaks_a_rule_is_named",
        "api/test_anthropic_caching.py::test_the_automatic_one_on_a_marked_block_is_no_fifth",
        "api/test_anthropic_caching.py::test_it_walks_back_past_blocks_that_cannot_carry_one",
    ),
    "a marker looks back at twenty blocks, itself included": (
        "gateway/test_prompt_cache.py::test_a_growing_conversation_reads_the_earlier_end_within_twenty_blocks",
        "gateway/test_prompt_cache.py::test_an_entry_more_than_twenty_blocks_back_is_not_seen_by_one_marker",
        "gateway/test_prompt_cache.py::test_a_second_marker_looks_back_from_its_own_place",
        "gateway/test_prompt_cache.py::test_the_marker_itself_counts_as_the_first_of_twenty_positions",
    ),
    "a prefix below the minimum is not cached, and that is no error": (
        "gateway/test_prompt_cache.py::test_a_prefix_shorter_than_the_minimum_is_silently_not_cached",
        "gateway/test_usage_ledger.py::test_a_marked_prefix_below_the_minimum_is_no_error_and_counts_nothing",
    ),
    "of two identical requests at once the second reads nothing until the first has begun": (
        "gateway/test_wire_behaviour.py::test_an_identical_request_reads_nothing_until_the_first_has_begun",
        "gateway/test_prompt_cache.py::test_a_prefix_can_be_read_only_when_the_first_reply_has_begun",
    ),
    "the order of keys in a tool is part of the prefix": (
        "gateway/test_wire_behaviour.py::test_a_tool_serialised_again_is_a_hit_and_shuffled_keys_are_named",
        "gateway/test_cache_diagnostics.py::test_the_order_of_keys_in_a_tool_matters_and_serialising_it_again_does_not",
        "client/test_tool_order.py::test_key_order_in_a_schema_counts_and_markers_do_not",
    ),
    # -- requests
    "sampling fields are known to one version of the API and unknown to the next": (
        "api/test_anthropic_requests.py::test_where_sampling_fields_are_taken",
        "api/test_anthropic_refusals.py::test_sampling_fields_are_unknown_to_the_latest_version",
        "conformance/test_conformance_anthropic.py::test_sampling_is_gated_on_the_version",
    ),
    "consecutive messages of one role are one turn, and counted as one": (
        "api/test_anthropic_requests.py::test_neighbours_of_one_role_are_merged",
        "gateway/test_wire_behaviour.py::test_neighbours_of_one_role_count_as_their_merged_message",
    ),
    "tool results that are late, missing or unasked for are refused": (
        "api/test_anthropic_refusals.py::test_a_message_out_of_place_is_named",
        "api/test_openai_decode.py::test_refused_messages",
    ),
    # -- the server
    "a client that left costs at most the step under way, and its blocks come back": (
        "gateway/test_leaving_in_steps.py::test_leaving_ends_with_the_step_under_way",
        "gateway/test_leaving_in_steps.py::test_the_others_go_on_when_one_leaves",
        "conformance/test_conformance_anthropic.py::test_async_stream_and_cancellation",
    ),
    "a token may end inside a character, a delta may not": (
        "gateway/test_wire_streams.py::test_no_delta_holds_half_a_character_and_all_together_are_the_text",
    ),
    "a stop sequence that comes in pieces is not shown, and named": (
        "gateway/test_wire_streams.py::test_a_stop_sequence_that_comes_in_pieces_never_shows",
        "conformance/test_conformance_anthropic.py::test_a_stop_sequence_is_named_and_not_shown",
    ),
    "of several streamed choices, the first has to begin first": (
        "api/test_openai_encode.py::test_choice_0_begins_first_whatever_arrives_first",
        "gateway/test_engine_backend.py::test_other_samples_are_held_back_until_the_first_has_begun",
    ),
    "a role or a call's id that comes twice is appended by clients": (
        "api/test_openai_encode.py::test_frames_of_text",
        "api/test_openai_encode.py::test_frames_of_tool_calls",
        "conformance/test_conformance_openai.py::test_streamed_arguments_name_the_call_once",
    ),
    "usage in chunks comes when it was asked for, and then on all of them": (
        "api/test_openai_encode.py::test_usage_is_null_on_every_chunk_and_then_has_a_chunk_of_its_own",
        "conformance/test_conformance_openai.py::test_usage_is_left_out_unless_asked_for",
    ),
    "a failure has a status before the first byte and is a frame after it": (
        "gateway/test_wire_streams.py::test_an_error_has_a_status_before_the_first_byte_and_a_frame_after_it",
        "gateway/test_app_exchanges.py::test_a_failure_after_the_head_is_the_last_frame",
    ),
    "proxies collect or compress streams unless told not to": (
        "gateway/test_app_exchanges.py::test_streams_keep_proxies_from_collecting_them",
        "gateway/test_wire_streams.py::test_streams_are_never_compressed",
    ),
    "a field that has no effect is listed, not swallowed": (
        "api/test_no_silent_field.py::test_no_field_of_a_message_request_is_silent",
        "api/test_no_silent_field.py::test_no_field_of_a_chat_request_is_silent",
        "gateway/test_app_exchanges.py::test_ignored_fields_are_listed_in_a_harmless_header",
    ),
}


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the test functions of a file, without importing it."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions))


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_every_pitfall_has_tests_that_exist(pitfall):
    assert PITFALLS[pitfall]
    for name in PITFALLS[pitfall]:
        file, function = name.split("::")
        assert function.startswith("test_")
        assert function in functions_of(TESTS / file), f"{name} is gone"
