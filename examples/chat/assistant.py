"""Models that answer word by word without an API key. To use real ones, pass their names."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelResponse, Usage, set_tracing_disabled
from agents.testing import assistant_message, function_call
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

set_tracing_disabled(True)
PAUSE = float(os.environ.get("CHAT_PAUSE", "0.15"))  # seconds between two words


def answer(item: dict[str, Any]) -> Any:
    """Answer the newest item as the assistant of a shop."""
    if "output" in item:
        return assistant_message(f"Done: {item['output']}.")
    text = str(item.get("content"))
    if "fail" in text:
        raise RuntimeError("The model is overloaded. Try again later.")
    if found := re.search(r"refund\D*(\d+)", text, re.IGNORECASE):
        return function_call("refund", {"order": int(found[1])}, call_id=f"call-{found[1]}")
    if "story" in text:
        return assistant_message(" ".join(f"Sentence {n} of the story." for n in range(1, 21)))
    return assistant_message("Your order arrives on Friday.")


def newest_item(args: Any, options: Any) -> dict[str, Any]:
    given = options["input"] if "input" in options else args[1]
    return {"content": given} if isinstance(given, str) else given[-1]


class ScriptedAssistant(Model):
    """A model that streams what `answer` returns."""

    async def get_response(self, *args: Any, **options: Any) -> Any:
        used = Usage(requests=1, input_tokens=200, output_tokens=50, total_tokens=250)
        return ModelResponse([answer(newest_item(args, options))], used, None)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        response = await self.get_response(*args, **options)
        [item] = response.output
        if item.type == "message":
            for word in re.findall(r"\S+\s*", item.content[0].text):
                await asyncio.sleep(PAUSE)
                yield ResponseTextDeltaEvent(
                    type="response.output_text.delta",
                    delta=word,
                    item_id=item.id,
                    output_index=0,
                    content_index=0,
                    logprobs=[],
                    sequence_number=0,
                )
        used = ResponseUsage.model_construct(input_tokens=200, output_tokens=50, total_tokens=250)
        yield ResponseCompletedEvent.model_construct(
            type="response.completed",
            sequence_number=0,
            response=Response.model_construct(
                id="response", object="response", output=response.output, usage=used
            ),
        )


class ScriptedTitles(ScriptedAssistant):
    """A model that answers with the first line of a conversation."""

    async def get_response(self, *args: Any, **options: Any) -> Any:
        text = newest_item(args, options)["content"]
        title = assistant_message(text.splitlines()[0].removeprefix("User: "))
        return ModelResponse([title], Usage(requests=1), None)


MODEL = ScriptedAssistant()
TITLE_MODEL = ScriptedTitles()
