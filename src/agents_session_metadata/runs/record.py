"""The record of a run: read once when a process takes the run, then appended to.

It has the position of the run, its steps (answers of models and outputs of tools) since it began
or paused, and the decisions since its pause. Fields and steps that a later version adds are
ignored.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from agents import Agent, ModelResponse
from agents.tool import (
    ValidToolOutputPydanticModels,
    ValidToolOutputPydanticModelsTypeAdapter,
)
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError
from sqlalchemy import Connection

from agents_session_metadata._sdk import ToolAnswer
from agents_session_metadata.core.database import FAILURES, settle
from agents_session_metadata.tracking.tracker import SessionTracker
from agents_session_metadata.usage.feature import UsageEntry, add_usage, place_usage
from agents_session_metadata.usage.prices import Tokens

if TYPE_CHECKING:
    from .approvals import Decision
    from .claim import Lease

logger: logging.Logger = logging.getLogger(__name__)

Cipher: TypeAlias = Callable[[bytes], "bytes | str"]
"""A function that encrypts or decrypts, such as a method of `cryptography.fernet.Fernet`."""

SEALED = "encrypted:"
OF_BACKGROUND = '"background": true'
"""Part of the stored progress of runs that `start` has begun. In a string, it would be escaped."""


@dataclass(frozen=True)
class Encryption:
    """Texts are not encrypted without the functions.

    A sealed text begins with a mark, so only texts that cannot begin with it are sealed, such as
    JSON. For others, whether they are sealed is stored beside them.
    """

    encrypt: Cipher | None = None
    decrypt: Cipher | None = None

    def seal(self, text: str) -> str:
        if self.encrypt is None:
            return text
        secret = self.encrypt(text.encode())
        coded = base64.b64encode(secret.encode() if isinstance(secret, str) else secret)
        return SEALED + coded.decode()

    def open(self, text: str) -> str:
        if not text.startswith(SEALED):
            return text
        if self.decrypt is None:
            raise ValueError("runs are stored encrypted; pass decrypt= to SessionRuns")
        plain = self.decrypt(base64.b64decode(text.removeprefix(SEALED)))
        return plain if isinstance(plain, str) else plain.decode()

    def dump(self, value: Any) -> str:
        return self.seal(json.dumps(value))

    def load(self, text: str) -> Any:
        return json.loads(self.open(text))

    def shown(self, text: str | None) -> str | None:
        """Returns None for a text that cannot be decrypted, so that a list shows the others."""
        if text is None or (self.decrypt is None and text.startswith(SEALED)):
            return None
        try:
            return self.open(text)
        except Exception:
            logger.warning("a text of a run was not decrypted", exc_info=True)
            return None


@dataclass(frozen=True)
class Progress:
    """The position of a run, from which it can go on; JSON in its row.

    Attributes:
        durable: Whether answers and outputs are recorded.
        options: Arguments of `Runner.run` from the beginning.
        first: The newest item before the run.
        base: The newest item before this part: before the run, or before its last pause.
        items: The number of items after the last write.
        writes: The numbers of items that the writes of this part have added.
        inside: Calls that wait at the pause inside agents that are used as tools.
        agent: The name of the agent that the run began with; None if 0.2.0 stored it.
        ledger: The newest row of the ledger before the run; None if its usage is not booked.
        live: Whether the answer in progress is stored for followers.
        background: Whether `recover` goes on with the run.
        replaced: Whether the run has replaced items of the history, as compaction does.
    """

    durable: bool
    options: dict[str, Any]
    first: int
    base: int
    items: int
    writes: list[int] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    agent: str | None = None
    ledger: int | None = None
    live: bool = False
    background: bool = False
    replaced: bool = False

    @classmethod
    def load(cls, text: str) -> Progress:
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})

    def dump(self) -> str:
        return json.dumps(vars(self))


@dataclass(eq=False)
class _NewStep:
    """A step that is about to be written, with what it adds to the ledger."""

    number: int
    value: str
    booked: Sequence[tuple[SessionTracker, UsageEntry]] = ()
    is_answer: bool = False


class RunRecord:
    """The record of the run that a lease holds."""

    def __init__(
        self,
        lease: Lease,
        progress: Progress,
        encryption: Encryption,
        steps: Mapping[int, Any],
        decisions: Mapping[str, Decision],
        deaths: int = 0,
    ) -> None:
        self.lease = lease
        self.progress = progress
        self.encryption = encryption
        self.decisions = decisions
        self.error: BaseException | None = None
        """The error because of which something was not recorded. It stops the run."""
        self.is_new: bool = False
        """Whether the run has done something that was not recorded before."""
        self.replaced: list[str] | None = None
        """The items that the history had at the beginning, if the run has replaced them."""
        self.trackers: list[SessionTracker] = []
        """The trackers whose ledger gets the usage of each answer with the answer."""
        self.usage: Any = None
        """The SDK's usage of the run, which the agents that it uses as tools share."""
        self.was_replayed: bool = False
        """Whether the last answer to the run itself was given back."""
        self.unheard: dict[str | None, ToolAnswer] = {}
        """The outputs of tools whose end the hooks have not heard yet."""
        self._answers: dict[str, list[Any]] = {}
        self._outputs: dict[str, Any] = {}
        self._written: set[str] = set()
        self._asked: Counter[str] = Counter()
        self.inputs: list[Any] = []
        """Input that was added to the state of the last pause."""
        self.live: Any = None
        """The `LiveAnswer` of a run that is followed."""
        # How many processes have died since the last recorded step.
        self._deaths = deaths
        self._batches = 0
        self._has_batches = False
        # Steps of tools that ran in parallel may lack one that was not written.
        self._number = max(steps, default=-1) + 1
        self._unwritten: list[_NewStep] = []
        self._writing = asyncio.Lock()
        self.is_placed: bool = not steps
        """Whether all usage that was booked belongs to an item of the history."""
        self.open_calls: set[str] = set(progress.inside)
        """The calls that have begun and have not ended, so they wait inside if the run pauses."""
        for step in steps.values():
            if "answer" in step:
                self._answers.setdefault(step["path"], []).append(step["answer"])
            elif "output" in step:
                self._outputs[step["call"]] = step
            elif "base" in step:
                self.replaced = step["base"]
            elif "input" in step:
                self.inputs.append(step["input"])

    def counts(self, usage: Any) -> None:
        """Must be called when the usage of the run is known, and may be called again."""
        if self.usage is None:
            self.usage = usage
            for tracker in self.trackers:
                tracker._accounts.records(usage)

    async def check(self) -> None:
        """Must be called before a model or a tool is called. Raises if the run must stop."""
        if self.error is not None:
            raise self.error
        await self.lease.check()
        self.is_new = True

    # ---- answers of models ----

    @property
    def will_replay(self) -> bool:
        """True if the next answer to the run itself is recorded."""
        return self._asked[""] < len(self._answers.get("", ()))

    def answer(self, path: str) -> ModelResponse | None:
        """Gives back the next recorded answer, or None. `path` is empty for the run itself."""
        recorded, number = self._answers.get(path, ()), self._asked[path]
        found = number < len(recorded)
        if not path:
            self.was_replayed = found
        if not found:
            return None
        self._asked[path] += 1
        response: ModelResponse = _responses().validate_python(recorded[number])
        for tracker in self.trackers:
            tracker._accounts.replays(self.usage, Tokens.of(response.usage))
        return response

    async def add_answer(
        self, path: str, response: ModelResponse, agent: str, model: str | None
    ) -> None:
        self._asked[path] += 1
        if not self.progress.durable:
            return
        # Without the fields that the model did not set: the history has none of them.
        dumped = _responses().dump_python(response, mode="json", exclude_unset=True)
        used = Tokens.of(response.usage)
        booked = [(each, each._accounts.entry(agent, model, used)) for each in self.trackers]
        answer = {"path": path, "answer": dumped}
        await self._add(self._step(answer, booked, is_answer=not path))

    # ---- outputs of tools ----

    def call_key(self, call_id: str | None) -> str:
        # Some models use an id again in a later turn.
        return f"{self._asked['']} {call_id}"

    def is_given_back(self, call_id: str | None) -> bool:
        return self.call_key(call_id) in self._outputs

    def output(self, call_id: str | None) -> ToolAnswer | None:
        step = self._outputs.get(self.call_key(call_id))
        if step is None:
            return None
        raised, is_default = bool(step.get("raised")), bool(step.get("default"))
        return ToolAnswer(load_output(step["output"]), raised, is_default)

    async def add_output(self, call_id: str | None, answer: ToolAnswer) -> None:
        """Does nothing if the output is recorded already."""
        key = self.call_key(call_id)
        # The SDK finishes calls that waited inside an agent from the state.
        is_from_state = call_id in self.progress.inside
        if is_from_state or key in self._written or not self.progress.durable:
            return
        self._written.add(key)
        step = {"call": key, "output": dump_output(answer.output)}
        flags = {"raised": answer.raised, "default": answer.is_default}
        await self._add(self._step({**step, **flags}))

    # ---- the answer in progress ----

    async def add_events(self, events: Sequence[Any]) -> None:
        """Stores events until the answer itself is recorded. Their numbers are below 0."""
        async with self._writing:
            self._batches += 1
            self._has_batches = True
            values = {"number": -self._batches, "value": self.encryption.dump({"events": events})}
            lease = self.lease
            await lease.store.database.write_one(
                lambda connection: lease.fence(connection, lease.sql.add_step, **values)
            )

    # ---- writing ----

    def keep_replaced(self, connection: Connection, texts: list[str]) -> None:
        """Records the items that the run began with, before the run replaces them."""
        if self.progress.durable:
            self._insert(connection, [self._step({"base": texts})])

    def place(self, connection: Connection) -> None:
        """Books usage that has no item yet to the newest item."""
        if self.progress.ledger is not None and not self.is_placed:
            place_usage(connection, self.lease.store, self.lease.session_id, self.progress.ledger)

    def _step(
        self,
        step: Any,
        booked: Sequence[tuple[SessionTracker, UsageEntry]] = (),
        *,
        is_answer: bool = False,
    ) -> _NewStep:
        self._number += 1
        return _NewStep(self._number - 1, self.encryption.dump(step), booked, is_answer)

    async def _add(self, step: _NewStep) -> None:
        self._unwritten.append(step)
        # If the caller is cancelled now, the step is recorded once or not at all.
        await settle(self._write(step))

    async def _write(self, step: _NewStep) -> None:
        """Writes a step, with those that others have added in the meantime."""
        async with self._writing:
            if step not in self._unwritten:
                return
            if self.error is not None:
                raise self.error
            steps = list(self._unwritten)
            database = self.lease.store.database
            ends_batches = self._has_batches and any(each.is_answer for each in steps)
            is_one = len(steps) == 1 and not (steps[0].booked or self._deaths or ends_batches)

            def insert(connection: Connection) -> None:
                self._insert(connection, steps)
                if ends_batches:
                    own = {"session": self.lease.session_id}
                    connection.execute(self.lease.sql.delete_batches, own)
                if self._deaths:
                    self.lease.fence(connection, self.lease.sql.reset)

            try:
                await (database.write_one if is_one else database.write)(insert)
            except FAILURES as error:
                await self.fail(error)
            del self._unwritten[: len(steps)]
            self._deaths, self._has_batches = 0, self._has_batches and not ends_batches
            for tracker, entry in (each for written in steps for each in written.booked):
                tracker._accounts.books(self.usage, entry)
                self.is_placed = False
            await self.lease.show()

    async def finish_writing(self) -> None:
        """Writes the steps that are left when the runner has ended.

        The SDK waits only a fraction of a second for the tools of a run that was cancelled or has
        failed. An output whose write takes longer must be stored before others take the run.
        """
        with suppress(*FAILURES):
            while self._unwritten and self.error is None and self.lease.lost is None:
                await self._write(self._unwritten[-1])

    def _insert(self, connection: Connection, steps: Iterable[_NewStep]) -> None:
        lease = self.lease
        for step in steps:
            for tracker, entry in step.booked:
                # First: it locks the session, and the next statement the run.
                whose = lease.session_id, tracker._owner
                add_usage(connection, lease.store, [entry], *whose, is_placed=False)
            lease.fence(connection, lease.sql.add_step, number=step.number, value=step.value)

    async def fail(self, error: BaseException) -> NoReturn:
        """Raises an error that stops the run, or that the lease is lost, if that explains it."""
        self.error = error
        with suppress(*FAILURES):
            await self.lease.renew()
        raise error


# ---- outputs as JSON ----


@cache
def _responses() -> TypeAdapter[ModelResponse]:
    return TypeAdapter(ModelResponse)


def dump_output(value: Any) -> Any:
    """Returns JSON for an output of a tool. Values that are not JSON become the model's text."""
    parts = value if isinstance(value, list) else [value]
    if parts and all(isinstance(part, ValidToolOutputPydanticModels) for part in parts):
        dumped = [part.model_dump(mode="json", exclude_none=True) for part in parts]
        return {"parts": dumped} if parts is value else {"part": dumped[0]}
    try:
        copied = json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        copied = None
    # By `repr`, which the model is sent: it tells 1 from True, and a tuple from a list.
    return {"json": value if repr(copied) == repr(value) else str(value)}


def load_output(value: Any) -> Any:
    if "json" in value:
        return value["json"]
    load = ValidToolOutputPydanticModelsTypeAdapter.validate_python
    return [load(part) for part in value["parts"]] if "parts" in value else load(value["part"])


def _output_type(agent: Agent[Any]) -> Any:
    """Returns the type of an agent's final output, or None if it is text or not known."""
    kind = agent.output_type
    kind = getattr(kind, "output_type", kind) if not isinstance(kind, type) else kind
    return None if kind is str else kind


def dump_final(value: Any, agent: Agent[Any]) -> Any:
    kind = _output_type(agent)
    if kind is not None:
        try:
            return TypeAdapter(kind).dump_python(value, mode="json")
        except (PydanticSerializationError, ValueError, TypeError):
            pass  # The output of a tool at which the run stopped.
    if isinstance(value, ValidToolOutputPydanticModels):
        return str(value)
    return load_output(dump_output(value))


def load_final(value: Any, agent: Agent[Any] | None) -> Any:
    kind = None if agent is None else _output_type(agent)
    if kind is None:
        return value
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValueError:
        return value
