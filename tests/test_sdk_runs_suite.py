"""The SDK's own tests of runs, passed by `SessionRuns.run` and `.stream` in place of `Runner`.

How a run of theirs becomes one of ours: see `sdk_runs_plugin`. What it cannot be: see
`sdk_runs_excluded`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from scaling import scale
from sdk_runs_excluded import EXCLUDED, EXCLUDED_ON_MYSQL
from servers import Database
from test_sdk_suite import SUITE

# In `make test`: runs and streams, their errors, approvals, guardrails and hooks.
NAMED = [
    *["agent_hooks", "agent_runner", "agent_runner_streamed", "guardrails"],
    *["hitl_error_scenarios", "max_turns", "run_hooks", "run_state_pending_input"],
    *["start_hook_tools", "stream_events", "tool_use_behavior"],
]
FURTHER = [
    *["agent_scoped_approvals", "handoff_history_duplication", "run_state"],
    *["start_hook_tool_concurrency", "tool_approval_call_id_reuse", "tool_batch_failure_history"],
    *["call_model_input_filter", "cancel_streaming", "function_tool_approval_arguments"],
    *["global_hooks", "invalid_final_output_handler", "programmatic_tool_calling"],
    *["resume_tool_use_behavior", "run_impl_resume_paths", "runner_model_provider_lifecycle"],
    *["scripted_model", "soft_cancel", "tool_exception_formatter", "tool_guardrails"],
    "tool_name_collision_policy",
]
FURTHER_MCP = ["mcp_approval", "mcp_resume_binding", "runner_calls_mcp"]
# Switched off for our own tests; theirs look at traces, and send none.
TRACING = "OPENAI_AGENTS_DISABLE_TRACING"
# How many tests of a release make a run that goes through `SessionRuns`.
COUNTS = {"0.24.0": scale(343, 1_126)}


def files() -> list[str]:
    """The files, relative to the SDK's folder of tests: all of them in `make fuzz`."""
    named = [f"test_{name}.py" for name in scale(NAMED, [*NAMED, *FURTHER])]
    return [*named, *(f"mcp/test_{name}.py" for name in scale([], FURTHER_MCP))]


@pytest.mark.scaled
@pytest.mark.logic
@pytest.mark.timeout(1_200)
def test_the_sdks_tests_of_runs_pass_through_session_runs(
    shared_database: Database, tmp_path: Path
) -> None:
    assert SUITE.is_dir(), 'the SDK\'s tests are not unpacked: run "make test"'
    report = tmp_path / "report.json"
    options = ["-p", "sdk_runs_plugin", "-p", "no:cacheprovider", "--tb=short", "--timeout=30"]
    chosen = files()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{name}" for name in chosen)],
        cwd=SUITE,
        env={
            **{name: value for name, value in os.environ.items() if name != TRACING},
            "PYTHONPATH": str(Path(__file__).parent),
            "SDK_RUNS_URL": shared_database.url,
            "SDK_RUNS_REPORT": str(report),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout[-10_000:]  # 1: some tests failed
    found: dict[str, dict[str, Any]] = {
        name.removeprefix("tests/"): made for name, made in json.loads(report.read_text()).items()
    }
    failed = {name for name, made in found.items() if made["outcome"] == "failed"}
    reasons = EXCLUDED | (EXCLUDED_ON_MYSQL if shared_database.kind == "mysql" else {})
    excluded = {
        name
        for names in reasons.values()
        for name in names
        if name.partition("::")[0] in set(chosen)
    }
    unexpected = sorted(failed - excluded)
    assert not unexpected, f"{len(unexpected)} failed:\n" + "\n".join(
        f"{name}: {found[name]['error'].strip().splitlines()[-1]}" for name in unexpected
    )
    assert not excluded - failed, f"excluded, but passed: {sorted(excluded - failed)}"
    through = sum("runs" in made["runs"] for made in found.values())
    assert through == COUNTS.get(version("openai-agents"), through)
