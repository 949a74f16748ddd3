"""The sidebar of a chat application, in which each user sees only their own chats."""

from _common import run

from agents_session_metadata import SessionCatalog, SessionInfo, SessionNotFoundError


def show(chat: SessionInfo) -> None:
    """Print a line of the sidebar."""
    title, tags = chat.metadata["title"], " ".join(chat.metadata["tags"])
    print(f"  {title or chat.preview:24} {tags}")


async def main(catalog: SessionCatalog) -> None:
    """Create the chats of two users, and list those of the first."""
    # One scope per user. Sessions and cursors that `mine` returns are restricted to the user, and
    # sessions that it creates belong to the user.
    mine = catalog.scoped({"owner_id": "user_123"})
    theirs = catalog.scoped({"owner_id": "user_456"})
    for number in range(1, 26):
        tags = ["work"] if number % 3 else ["home", "family"]
        # For a chat without a title, the sidebar shows the beginning of its first message.
        metadata = {"title": f"Chat {number}" if number % 2 else None, "tags": tags}
        session = await mine.create_session(f"chat-{number:02}", metadata=metadata)
        await session.add_items([{"role": "user", "content": f"Hello,\nthis is chat {number}."}])
    await theirs.create_session("secret", metadata={"title": "Not yours", "tags": ["work"]})

    print("The newest 20 chats:")
    page = await mine.list_sessions(limit=20, keys=["title", "tags"], preview=True)
    for chat in page.sessions:
        show(chat)
    print("The next page:")
    rest = await mine.list_sessions(
        limit=20, keys=["title", "tags"], preview=True, cursor=page.next_cursor
    )
    for chat in rest.sessions:
        show(chat)
    shown = [chat.session_id for chat in page.sessions + rest.sessions]
    assert len(page.sessions) == 20
    assert len(set(shown)) == len(shown) == 25
    assert rest.next_cursor is None
    assert [chat.preview for chat in rest.sessions if chat.session_id == "chat-04"] == [
        "Hello, this is chat 4."
    ]

    print("Renaming a chat does not reorder the list:")
    await mine.set_metadata("chat-07", {"title": "Holidays"})
    again = await mine.list_sessions(limit=100, keys=["title", "tags"])
    assert [chat.session_id for chat in again.sessions] == shown
    show(again.sessions[shown.index("chat-07")])

    at_home = await mine.list_sessions({"tags": {"$contains": "home"}}, limit=3)
    print("Tagged home, the newest 3:", [chat.metadata["title"] for chat in at_home.sessions])
    assert all("home" in chat.metadata["tags"] for chat in at_home.sessions)
    counts = await mine.count_values("tags")
    print("Tags:", ", ".join(f"{each.value} {each.count}" for each in counts))
    assert {each.value: each.count for each in counts} == {"work": 17, "home": 8, "family": 8}

    assert await mine.delete_session("chat-07")
    print("After deleting one:", await mine.count_sessions())
    assert await mine.count_sessions() == 24

    print("Another user's chat does not exist:")
    assert await mine.get_session("secret") is None
    assert await mine.session("secret").get_items() == []
    assert await mine.delete_session("secret") is False
    try:
        await mine.session("secret").set_metadata({"title": "Mine now"})
    except SessionNotFoundError as error:
        print(" ", error)
    else:
        raise AssertionError("another user's chat was renamed")
    assert await theirs.get_metadata("secret", keys=["title"]) == {"title": "Not yours"}


if __name__ == "__main__":
    run("sidebar", main)
