"""Models that answer without an API key. To use real ones, pass their names instead."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

from agents import Usage, set_tracing_disabled
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

set_tracing_disabled(True)


def scripted(answer: Callable[[dict[str, Any]], Any]) -> ScriptedModel:
    """Return a model that answers each call with a function of the newest item."""
    used = Usage(requests=1, input_tokens=200, output_tokens=50, total_tokens=250)
    model = ScriptedModel(default_usage=used)

    async def respond(call: ModelCall) -> Any:
        model.enqueue(ModelStep.respond(respond))
        newest: Any = call.input if isinstance(call.input, str) else call.input[-1]
        if "slowly" in str(newest):
            await asyncio.sleep(2)
        return [answer({"content": newest} if isinstance(newest, str) else newest)]

    model.enqueue(ModelStep.respond(respond))
    return model


def reply(item: dict[str, Any]) -> Any:
    """Answer as the assistant of a shop."""
    if "output" in item:
        return assistant_message(f"Done: {item['output']}.")
    if found := re.search(r"refund\D*(\d+)", item["content"], re.IGNORECASE):
        return function_call("refund", {"order": int(found[1])}, call_id=f"call-{found[1]}")
    return assistant_message("Your order arrives on Friday.")


def first_line(item: dict[str, Any]) -> Any:
    """Answer with the first line of a conversation."""
    return assistant_message(item["content"].splitlines()[0].removeprefix("User: "))


MODEL = scripted(reply)
TITLE_MODEL = scripted(first_line)
