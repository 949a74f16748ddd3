"""Tracks the progress of a resumed run.

`Runner.run` updates the `RunState` that it was given only up to the turn that was interrupted. If a
later turn raises, the state lacks the turns in between, while their tools are marked as completed,
and the SDK refuses to restore it. The missing turns are in the input of the last model call, and
the last of them in the items that were added to the session after it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from agents import RunHooks
from agents.exceptions import UserError
from agents.lifecycle import RunHooksBase
from agents.run_config import CallModelData, ModelInputData

from agents_session_metadata.history.pairs import calls_and_outputs

from .states import restorable, with_ids_used_again, without_answered_questions, without_lost_calls


class Progress(RunHooks[Any]):
    """Run hooks that remember the last input of the model, and call the hooks of the caller.

    `check` is called before the first tool or model call, until it has succeeded once.
    """

    def __init__(self, hooks: RunHooks[Any] | None) -> None:
        if hooks is not None and not isinstance(hooks, RunHooksBase):
            raise TypeError(f"hooks must be RunHooks, got {type(hooks).__name__}")
        self.is_answered: bool = False
        self.check: Callable[[], Awaitable[None]] | None = None
        self._refused: BaseException | None = None
        self._checks: set[asyncio.Future[None]] = set()
        self._model_calls = 0
        self._hooks: RunHooks[Any] = RunHooks() if hooks is None else hooks
        self._input: list[Any] = []
        self._unfiltered: list[Any] | None = None
        self._added: list[Any] = []
        self._handed_to: str | None = None
        self._is_saving = False
        self._is_ahead = False
        self._to_cancel: asyncio.Task[Any] | None = None
        for event in vars(RunHooksBase):
            if event.startswith("on_") and event not in vars(Progress):
                setattr(self, event, getattr(self._hooks, event))

    def observed(self, config: Any) -> Any:
        """Wraps the input filter of a run configuration to remember the unfiltered input.

        The SDK also accepts a dict, and rejects values of other types.
        """
        name = "call_model_input_filter"
        is_dict = isinstance(config, dict)
        call_filter: Any = config.get(name) if is_dict else getattr(config, name, None)
        if call_filter is None:
            return config

        async def remember(data: CallModelData[Any]) -> ModelInputData:
            unfiltered = list(data.model_data.input)
            result = call_filter(data)
            filtered: ModelInputData = await result if inspect.isawaitable(result) else result
            # Runs inside tools use the filter too, before the next model call of this run does.
            self._unfiltered = unfiltered
            return filtered

        return {**config, name: remember} if is_dict else replace(config, **{name: remember})

    def use_wrapped(self) -> None:
        """Must be called when a wrapped session, whose items are not seen, reads or writes."""
        self._is_ahead = True

    def begin_to_add(self) -> None:
        """Must be called before the items of a finished turn are added to the session."""
        self._is_saving = True

    def add(self, items: Sequence[Any]) -> None:
        self._added += items

    def cancel(self, run: asyncio.Task[Any]) -> None:
        """Cancels a run at a moment at which the content of the history is known.

        A run that has answered ends by itself. A run that is storing a turn is cancelled before the
        next model call, unless it ends or pauses first.
        """
        if self.is_answered:
            return
        if self._is_saving:
            self._to_cancel = run
        else:
            run.cancel()

    async def end_checks(self) -> None:
        """Waits for running checks: a run can end before the tools that it has cancelled."""
        if self._checks:
            await asyncio.wait(self._checks)

    @property
    def refused(self) -> BaseException | None:
        """Returns the error of `check` if nothing was run or added.

        The check may also have succeeded for another tool call of the same turn.
        """
        has_run = self.check is None or self._is_saving or self._is_ahead
        return None if has_run else self._refused

    @property
    def has_asked(self) -> bool:
        return self._model_calls > 0

    @property
    def is_history_ahead(self) -> bool:
        """Returns True if a wrapped session may have stored a turn that the state lacks."""
        return self._is_ahead and self.has_asked

    @property
    def is_stored(self) -> bool:
        return self.is_answered and bool(self._added)

    def continued(self, written: dict[str, Any], responses: int) -> dict[str, Any]:
        """Adds to the state of a run that raised the turns that it lacks.

        `responses` is the number of model responses in the state when the run was resumed. Raises
        `UserError` if the run was about to pause.
        """
        calls, outputs = calls_and_outputs(self._added)
        if calls - outputs:
            raise UserError("the last turn of the run has calls without outputs")
        turns = self._model_calls if self._added else self._model_calls - 1
        if len(written["model_responses"]) >= responses + turns:
            return with_ids_used_again(without_answered_questions(written))
        continued = {
            **written,
            "original_input": [*self._input, *self._added],
            "current_agent": (
                {"name": self._handed_to}
                if self._added and self._handed_to is not None
                else written["current_agent"]
            ),
            "generated_items": [],
            "session_items": [],
            "generated_session_item_indexes": [],
            "nested_history_owned_session_item_refs": [],
            "last_processed_response": None,
            "current_step": {"type": "next_step_run_again"},
            "current_turn": written["current_turn"] + turns,
            "current_turn_persisted_item_count": 0,
        }
        # The calls of a turn that did not end are lost.
        return restorable(without_lost_calls(continued))

    async def _check_once(self) -> None:
        if self.check is None:
            return
        ended = asyncio.get_running_loop().create_future()
        self._checks.add(ended)
        try:
            await self.check()
        except BaseException as error:
            self._refused = error
            raise
        else:
            self.check = None
        finally:
            ended.set_result(None)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        await self._check_once()
        await self._hooks.on_tool_start(context, agent, tool)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        await self._check_once()
        self._model_calls += 1
        self._added = []
        self._handed_to = None
        self._is_saving = False
        self._is_ahead = False
        self._input = list(input_items) if self._unfiltered is None else self._unfiltered
        if self._to_cancel is not None:
            self._to_cancel.cancel()
            await asyncio.sleep(0)
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        await self._hooks.on_handoff(context, from_agent, to_agent)
        self._handed_to = to_agent.name

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.is_answered = True
        await self._hooks.on_agent_end(context, agent, output)
