"""Items of ChatKit's threads."""

from __future__ import annotations

from datetime import datetime, timezone

from chatkit.types import (
    AssistantMessageContent,
    AssistantMessageItem,
    InferenceOptions,
    UserMessageItem,
    UserMessageTextContent,
    WidgetItem,
)
from chatkit.widgets import Card, Text

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def user_item(thread_id, name, text="?", attachments=()):
    return UserMessageItem(
        id=name,
        thread_id=thread_id,
        created_at=NOW,
        content=[UserMessageTextContent(text=text)],
        attachments=list(attachments),
        inference_options=InferenceOptions(),
    )


def assistant_item(thread_id, name, text="!"):
    content = [AssistantMessageContent(text=text)]
    return AssistantMessageItem(id=name, thread_id=thread_id, created_at=NOW, content=content)


def widget(thread_id, name):
    card = Card(children=[Text(value="…", id="x")])
    return WidgetItem(id=name, thread_id=thread_id, created_at=NOW, widget=card)
