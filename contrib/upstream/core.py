"""The core of the package as modules of the SDK: what goes, what stays, and where it is put."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import libcst as cst

from .fold import Fold, code_of
from .join import Wording, from_module, join, only
from .reach import Reach, Source
from .rules import (
    ASSUMED,
    DROPPED,
    EXPORTS,
    FOREIGN,
    LINTED,
    PHRASES,
    REMOVED,
    REPLACED,
    TARGETS,
    Replacement,
    RuleError,
    Target,
)

PACKAGE = FilePath(__file__).parents[2] / "src" / "agents_session_metadata"
MEMORY = "src/agents/extensions/memory"


def generate_core(package: FilePath = PACKAGE) -> dict[str, str]:
    """Make the SDK's modules out of ours.

    Returns:
        Text by path within the SDK's source tree; neither sorted nor formatted yet.

    Raises:
        RuleError: If a rule no longer matches what it is for.
    """
    home = {module: target for target in TARGETS for module in target.modules}
    sources = _read({name: (package / f"{name}.py").read_text("utf-8") for name in home})
    reach = Reach(sources, [(module, name) for name, module in EXPORTS.items()], DROPPED)
    unused = set(DROPPED) - reach.spared
    if unused:
        raise RuleError(f"nothing keeps what is dropped: {sorted('.'.join(u) for u in unused)}")
    if reach.elsewhere:
        raise RuleError(f"needed, but in no target: {', '.join(sorted(reach.elsewhere))}")
    needed = {name: reach.body_of(name) for name in sources}
    errors = {
        statement.name.value
        for statement in sources["errors"].tree.body
        if isinstance(statement, cst.ClassDef)
    }
    gone = {name for name in errors if ("errors", name) not in reach.kept}
    files = {f"{MEMORY}/_session_metadata/__init__.py": _INIT}
    for target in TARGETS:
        files[f"{MEMORY}/{target.path}"] = _file(target, sources, needed, reach, home, gone)
    for path, text in files.items():
        for line in text.splitlines():
            if re.search(FOREIGN, line):
                raise RuleError(f"{path} speaks of the package: {line.strip()}")
    return files


_INIT = '"""What `SQLAlchemyMetadataSession` is made of; nothing in here is public."""\n'


def _read(texts: Mapping[str, str]) -> dict[str, Source]:
    texts = dict(texts)
    for rule in REPLACED:
        texts[rule.module] = apply(rule, texts[rule.module])
    for old, new in PHRASES.items():
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    sources, used = {}, set()
    for name, text in texts.items():
        tree, assumed = _folded(text)
        sources[name] = Source(name, tree)
        used |= assumed
    if used != set(ASSUMED):
        raise RuleError(f"assumed of what is nowhere: {sorted(set(ASSUMED) - used)}")
    return sources


@lru_cache(maxsize=64)
def _folded(text: str) -> tuple[cst.Module, set[str]]:
    """A module without what is assumed not to happen, and what was assumed."""
    fold = Fold(ASSUMED, REMOVED)
    return cst.parse_module(text).visit(fold), fold.used


def apply(rule: Replacement, text: str) -> str:
    """A text with a rule's replacement made.

    Raises:
        RuleError: If what it replaces does not stand there as often as it says.
    """
    found = text.count(rule.old)
    if found != rule.times:
        raise RuleError(f"{rule.module}: found {found} times, not {rule.times}: {rule.old!r}")
    return text.replace(rule.old, rule.new)


def _file(
    target: Target,
    sources: Mapping[str, Source],
    needed: Mapping[str, list[Any]],
    reach: Reach,
    home: Mapping[str, Target],
    gone: set[str],
) -> str:
    def rewrite(statement: cst.ImportFrom) -> cst.ImportFrom | None:
        module = code_of(statement.module) if statement.module else ""
        if not statement.relative:
            return _absolute(statement, module, target.path)
        if not module:
            (alias,) = statement.names  # type: ignore[misc]  # no star
            name = code_of(alias.name)
            return _whole(statement, name, home[name], target) if needed[name] else None
        kept = only(statement, {name for owner, name, *_ in reach.kept if owner == module})
        if kept is None or home[module] is target:
            return None
        return from_module(kept, _relative(home[module].path, target.path))

    exports: list[str] = []
    imports: list[str] = []
    if target.public:
        exports = sorted(EXPORTS)
        imports = [
            f"from {_relative(home[module].path, target.path)} import {name}"
            for name, module in EXPORTS.items()
            if home[module] is not target
        ]
    wording = Wording(LINTED, gone)
    parts = [
        (sources[name], [statement.visit(wording) for statement in needed[name]])
        for name in target.modules
    ]
    docstring = target.docstring or sources[target.modules[0]].tree.get_docstring() or ""
    return join(docstring, parts, rewrite, exports=exports, imports=imports)


def _whole(statement: cst.ImportFrom, name: str, owner: Target, target: Target) -> cst.ImportFrom:
    """An import of a module as a whole, by the name that it has in its new place."""
    path = FilePath(owner.path)
    alias = statement.names[0]  # type: ignore[index]  # no star
    renamed = alias.with_changes(name=cst.Name(path.stem), comma=cst.MaybeSentinel.DEFAULT)
    if alias.asname is None:
        renamed = renamed.with_changes(
            asname=cst.AsName(cst.Name(name), cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))
        )
    package = _relative(owner.path, target.path).removesuffix(path.stem)
    return from_module(statement, package or ".").with_changes(names=[renamed])


def _absolute(statement: cst.ImportFrom, module: str, path: str) -> cst.ImportFrom:
    """An import of the SDK, from within."""
    if module != "agents" and not module.startswith("agents."):
        return statement
    place = ["agents", "extensions", "memory", *FilePath(path).parent.parts]
    wanted = module.split(".")
    common = 0
    while common < min(len(place), len(wanted)) and place[common] == wanted[common]:
        common += 1
    dots = "." * (len(place) - common + 1)
    return from_module(statement, dots + ".".join(wanted[common:]))


def _relative(wanted: str, path: str) -> str:
    """How a module of the core is called from another one of it."""
    package, name = FilePath(wanted).parent, FilePath(wanted).stem
    if package == FilePath(path).parent:
        return f".{name}"
    if FilePath(path).parent == FilePath():
        return f".{package.as_posix()}.{name}"
    raise RuleError(f"{path} would import {wanted}, which stands above it")
