"""The SDK's own tests that a run of `SessionRuns` cannot pass, one by one, each with its reason.

A test that is listed here and passes is an error.
"""

# ruff: noqa: E501  # ids of tests

EXCLUDED: dict[str, list[str]] = {
    "It fails in the same way under `Runner.run` with a session of the SDK.": [
        "test_agent_runner.py::test_falsey_per_handoff_input_filter_takes_precedence[non_streamed]",
        "test_agent_runner.py::test_falsey_per_handoff_input_filter_takes_precedence[streamed]",
        "test_agent_runner.py::test_opt_in_handoff_history_nested_and_filters_respected",
        "test_agent_runner.py::test_simple_first_run",
        "test_agent_runner.py::test_subsequent_runs",
        "test_agent_runner_streamed.py::test_simple_first_run",
        "test_agent_runner_streamed.py::test_streamed_finalizer_failure_follows_both_data_policies[diagnostic]",
        "test_agent_runner_streamed.py::test_streamed_finalizer_failure_follows_both_data_policies[model_redacted]",
        "test_agent_runner_streamed.py::test_streamed_finalizer_failure_follows_both_data_policies[tool_redacted]",
        "test_agent_runner_streamed.py::test_subsequent_runs",
        "test_cancel_streaming.py::test_consumer_cancellation_at_terminal_wait_propagates[guardrail]",
        "test_soft_cancel.py::test_soft_cancel_completes_turn",
        "test_soft_cancel.py::test_soft_cancel_vs_immediate",
    ],
    "It expects a streamed run to begin before its first event, and `SessionRuns.stream` begins with its block.": [
        "test_agent_runner_streamed.py::test_output_guardrail_exception_raises_from_run_loop_task_before_stream_consumption",
        "test_agent_runner_streamed.py::test_output_guardrail_tripwire_raises_from_run_loop_task_before_stream_consumption",
        "test_agent_runner_streamed.py::test_streamed_trip_replaces_current_tool_output_guardrail_results[allow]",
        "test_agent_runner_streamed.py::test_streamed_trip_replaces_current_tool_output_guardrail_results[reject_content]",
        "test_agent_runner_streamed.py::test_streaming_non_max_turns_exception_does_not_emit_queued_events",
        "test_cancel_streaming.py::test_cancel_before_streaming",
        "test_guardrails.py::test_model_error_before_guardrail_error_preserves_stream_finalization",
        "test_cancel_streaming.py::test_cancel_immediate_unblocks_waiting_stream_consumer",
        "test_handoff_history_duplication.py::test_to_input_list_during_active_stream_does_not_mutate_input",
        "test_runner_model_provider_lifecycle.py::test_run_streamed_cancel_before_start_propagates_through_cleanup_wrapper",
        "test_runner_model_provider_lifecycle.py::test_run_streamed_closes_provider_after_cancellation",
        "test_runner_model_provider_lifecycle.py::test_run_streamed_closes_provider_only_after_run_settles",
        "test_runner_model_provider_lifecycle.py::test_run_streamed_repeated_cancellation_waits_for_provider_cleanup",
        "test_soft_cancel.py::test_soft_cancel_before_streaming",
        "test_soft_cancel.py::test_soft_cancel_does_not_clear_queues_immediately",
        "test_soft_cancel.py::test_soft_cancel_mixed_modes",
        "test_soft_cancel.py::test_streamed_run_completes_without_an_event_consumer",
    ],
    "It calls `run_streamed` in a way that the block around a stream does not have.": [
        "test_agent_runner.py::test_run_streamed_preserves_legacy_positional_previous_response_id",
        "test_run_hooks.py::test_runner_run_streamed_rejects_agent_hooks",
    ],
    "It leaves the stream early and expects the run to end, and leaving it interrupts a run of `SessionRuns`.": [
        "test_soft_cancel.py::test_closing_stream_consumer_releases_turn_acknowledgement",
    ],
    "It replaces private methods of the streamed result, or looks for a message that they log.": [
        "test_cancel_streaming.py::test_consumer_cancellation_at_terminal_wait_propagates[run_loop]",
        "test_cancel_streaming.py::test_terminal_consumer_cancellation_waits_for_registered_cleanup",
        "test_runner_model_provider_lifecycle.py::test_run_preserves_primary_error_when_provider_cleanup_fails",
    ],
    "`SessionRuns` refuses to resume a run whose tool is not there, unless `force=True`.": [
        "test_tool_approval_call_id_reuse.py::test_approved_custom_tool_resume_fails_when_current_tool_is_missing",
        "test_tool_approval_call_id_reuse.py::test_pending_custom_tool_resume_survives_missing_current_tool",
        "test_tool_approval_call_id_reuse.py::test_rejected_custom_tool_resume_emits_output_when_current_tool_is_missing[in-memory]",
    ],
}

EXCLUDED_ON_MYSQL: dict[str, list[str]] = {
    "It lets every `asyncio.wait_for` time out, and the driver connects with it.": [
        "test_programmatic_tool_calling.py::test_runner_validates_only_user_output_after_late_tool_timeout[False]",
        "test_programmatic_tool_calling.py::test_runner_validates_only_user_output_after_late_tool_timeout[True]",
    ],
}
