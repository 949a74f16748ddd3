"""What is passed by mistake is refused with a sentence; URLs are taken as people write them."""

from __future__ import annotations

import sys
from datetime import timedelta
from enum import Enum

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    MetadataLimits,
    SessionCatalog,
    SQLAlchemyMetadataSession,
    normalize_agent,
)
from conformance import raw

pytestmark = pytest.mark.logic

IN_MEMORY = "sqlite+aiosqlite://"


class Key(str, Enum):
    TITLE = "title"


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("sqlite+aiosqlite://", "got str; "),
        (create_async_engine(IN_MEMORY).url, "for a URL, use from_url"),
        (create_engine("sqlite://"), "got Engine; make it with create_async_engine"),
        (None, "got NoneType"),
    ],
)
def test_an_engine_of_another_kind(engine, said):
    for make in (
        lambda: SessionCatalog(engine),
        lambda: SQLAlchemyMetadataSession("chat", engine=engine),
    ):
        with pytest.raises(TypeError, match=r"engine must be an AsyncEngine") as caught:
            make()
        assert said in str(caught.value)


def test_limits_of_another_kind():
    engine = create_async_engine(IN_MEMORY)
    for limits in ({"max_keys": 3}, 3, MetadataLimits):
        with pytest.raises(TypeError, match="metadata_limits must be MetadataLimits"):
            SessionCatalog(engine, metadata_limits=limits)
        with pytest.raises(TypeError, match="metadata_limits must be MetadataLimits"):
            SQLAlchemyMetadataSession("chat", engine=engine, metadata_limits=limits)


def test_a_misspelled_option_of_a_constructor_is_refused():
    engine = create_async_engine(IN_MEMORY)
    for make in (
        lambda options: SessionCatalog(engine, **options),
        lambda options: SessionCatalog.from_url(IN_MEMORY, **options),
        lambda options: SQLAlchemyMetadataSession("chat", engine=engine, **options),
        lambda options: SQLAlchemyMetadataSession.from_url("chat", url=IN_MEMORY, **options),
    ):
        make({"create_tables": True})
        with pytest.raises(TypeError, match=r"'create_table'"):
            make({"create_table": True})


@pytest.mark.parametrize("bad", [{"owner_id": "u1"}, 7, b"chat", None, ["chat"]])
async def test_an_id_that_is_no_string(catalog, bad):
    said = f"session_id must be a string, got {type(bad).__name__}"
    with pytest.raises(TypeError, match=said):
        SQLAlchemyMetadataSession(bad, engine=catalog.engine)
    with pytest.raises(TypeError, match=said):
        catalog.session(bad)
    calls = [
        catalog.get_session(bad),
        catalog.delete_session(bad),
        catalog.get_metadata(bad),
        catalog.set_metadata(bad, {"a": 1}),
        catalog.set_metadata(bad, {}),
        catalog.edit_metadata(bad, dict.clear),
        catalog.delete_metadata(bad),
        catalog.fork_session(bad),
    ]
    if bad is not None:
        calls.append(catalog.create_session(bad))
    for call in calls:
        with pytest.raises(TypeError, match=said) as caught:
            await call
        assert ("pass metadata as metadata={…}" in str(caught.value)) == isinstance(bad, dict)
    assert await catalog.count_sessions() == 0


async def test_an_edit_that_forgets_to_change_the_dict(catalog):
    await catalog.create_session("chat", metadata={"a": {"b": {"c": 1}}, "n": 1})
    for change in (
        lambda metadata: {**metadata, "x": 1},
        dict,
        lambda metadata: {},
    ):
        with pytest.raises(TypeError, match="change the dict that it is given in place"):
            await catalog.edit_metadata("chat", change)
    before = await catalog.get_metadata("chat")
    for ignored in (
        lambda metadata: metadata,
        lambda metadata: metadata["a"],
        lambda metadata: metadata.setdefault("a", {}),
        lambda metadata: metadata["a"].get("b"),
        lambda metadata: 7,
        lambda metadata: ["a"],
        lambda metadata: None,
    ):
        assert await catalog.edit_metadata("chat", ignored) == before

    def both(metadata):
        metadata["n"] += 1
        return {"other": 1}

    assert (await catalog.edit_metadata("chat", both))["n"] == 2


async def test_an_edit_gives_plain_keys(catalog):
    def change(metadata):
        metadata[Key.TITLE] = Key.TITLE

    for _ in range(2):
        edited = await catalog.edit_metadata("chat", change)
        assert edited == {"title": "title"}
        assert [type(part) for part in (*edited, *edited.values())] == [str, str]


async def test_deleting_in_a_scope_needs_no_filter(catalog, engine):
    mine = catalog.scoped({"owner_id": "me"})
    await mine.create_session("mine")
    await catalog.create_session("other")
    assert await mine.delete_sessions(dry_run=True) == 1
    assert await mine.delete_sessions() == 1
    with pytest.raises(ValueError, match="filter with a condition, or inactive_for"):
        await catalog.delete_sessions()
    assert await catalog.count_sessions() == 1


async def test_no_age_at_all_reaches_into_the_future(catalog, engine):
    await catalog.create_session("chat")
    await raw.set_times(engine, "chat", updated_at="2037-01-01 00:00:00")
    assert await catalog.delete_sessions(inactive_for=timedelta(seconds=1)) == 0
    assert await catalog.delete_sessions(inactive_for=timedelta(0), dry_run=True) == 1
    assert await catalog.delete_sessions(inactive_for=timedelta(0)) == 1


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///chat.db", "sqlite+aiosqlite"),
        ("sqlite://", "sqlite+aiosqlite"),
        ("postgres://u:secret@h/d", "postgresql+asyncpg"),
        ("postgresql://u:secret@h/d", "postgresql+asyncpg"),
        ("postgresql+psycopg://u:secret@h/d?password=secret", "postgresql+psycopg"),
        ("mysql://u:secret@h/d", "mysql+asyncmy"),
        ("mariadb://u:secret@h/d", "mariadb+asyncmy"),
    ],
)
def test_urls_as_people_write_them(url, driver):
    for made in (
        SessionCatalog.from_url(url),
        SQLAlchemyMetadataSession.from_url("chat", url=url, ensure_ascii=False),
        SessionCatalog.from_url(url).scoped({"owner_id": "hidden"}),
    ):
        assert made.engine.url.drivername == driver
        assert driver in repr(made)
        assert type(made).__name__ in repr(made)
        assert "secret" not in repr(made)
        assert "hidden" not in repr(made)


def test_a_driver_that_is_not_installed(monkeypatch):
    for name in ("asyncpg", "aiosqlite", "asyncmy"):
        monkeypatch.setitem(sys.modules, name, None)
    for url, extra in (
        ("postgres://u:secret@h/d", "postgresql"),
        ("sqlite:///chat.db", "sqlite"),
        ("mysql://u:secret@h/d", "mysql"),
    ):
        for make in (
            lambda url=url: SessionCatalog.from_url(url),
            lambda url=url: SQLAlchemyMetadataSession.from_url("chat", url=url),
        ):
            with pytest.raises(ModuleNotFoundError) as caught:
                make()
            assert f"install agents-session-metadata[{extra}]" in str(caught.value)
            assert "secret" not in str(caught.value)


def test_what_is_no_url():
    with pytest.raises(ValueError, match="not valid") as caught:
        SessionCatalog.from_url("secret")
    assert "secret" not in str(caught.value)
    with pytest.raises(TypeError, match="url must be"):
        SessionCatalog.from_url(7)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("@ @x", "x"),
        (" @@ x y @ ", "x y @"),
        ("x@y", "x@y"),
        ("@", ""),
        (" @ @ ", ""),
        ("", ""),
        ("\t@x\n", "x"),
        ("@" * 100_000 + "x", "x"),
    ],
)
def test_names_of_agents(name, plain):
    assert normalize_agent(name) == plain
    assert normalize_agent(plain) == plain


def test_an_unknown_argument_names_the_public_method():
    catalog = SessionCatalog(create_async_engine(IN_MEMORY))
    with pytest.raises(TypeError, match=r"^SessionCatalog\.list_sessions\(\) got an unexpected"):
        catalog.list_sessions(filter={"owner_id": "u1"})
    public = {name for name in dir(SessionCatalog) if not name.startswith("_")}
    assert public <= vars(SessionCatalog).keys()
