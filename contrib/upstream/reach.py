"""Which definitions of a set of modules are needed, beginning at some, and cutting off the rest.

Functions and classes are followed by name, through imports. The methods of a class of our own are
followed by name alone: one is needed when an attribute of its name is read anywhere in what is
needed. That errs to one side only, so a rule may drop a method that is kept by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import libcst as cst

from .fold import code_of
from .rules import RuleError

Path: TypeAlias = tuple[str, ...]
"""A module and a name; or a module, a class, a member and, in a constructor, an attribute."""


@dataclass
class Unit:
    """Statements that stand or fall together: an assignment has its docstring after it."""

    names: tuple[str, ...]
    statements: list[Any]

    @property
    def node(self) -> Any:
        """The statement that defines the names."""
        return self.statements[0]


def units(body: Sequence[Any]) -> list[Unit]:
    """The units of a module's or a class's body."""
    found: list[Unit] = []
    for statement in body:
        if found and found[-1].names and is_docstring(statement):
            found[-1].statements.append(statement)
        else:
            found.append(Unit(_defined(statement), [statement]))
    return found


def is_docstring(statement: Any) -> bool:
    """Whether a statement is a string and nothing else."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString)
    )


def is_import(statement: Any) -> bool:
    """Whether a statement imports, or is a block that imports for type checkers only."""
    if isinstance(statement, cst.If):
        return code_of(statement.test) == "TYPE_CHECKING"
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], (cst.Import, cst.ImportFrom)
    )


def imports_of(statement: Any) -> list[cst.ImportFrom | cst.Import]:
    """The imports in such a statement."""
    if isinstance(statement, cst.If):
        return [one for inner in statement.body.body for one in imports_of(inner)]
    return list(statement.body)


def _defined(statement: Any) -> tuple[str, ...]:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return (statement.name.value,)
    if not isinstance(statement, cst.SimpleStatementLine):
        return ()
    small = statement.body[0]
    targets: list[Any] = []
    if isinstance(small, cst.Assign):
        targets = [target.target for target in small.targets]
    elif isinstance(small, cst.AnnAssign):
        targets = [small.target]
    names: list[str] = []
    for target in targets:
        parts = (
            [part.value for part in target.elements] if hasattr(target, "elements") else [target]
        )
        names.extend(part.value for part in parts if isinstance(part, cst.Name))
    return tuple(names)


@dataclass
class Source:
    """A module of ours.

    Attributes:
        name: Its name within the package.
        tree: Its code.
        package: Where the relative imports in it lead.
        internal: What it imports from the package: local name, to module and name.
        modules: Modules of the package that it imports as a whole, by local name.
        external: Local names of everything else that it imports.
    """

    name: str
    tree: cst.Module
    package: str = ""
    internal: dict[str, tuple[str, str]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    external: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for statement in self.tree.body:
            if is_import(statement):
                for one in imports_of(statement):
                    self._note(one)

    def _note(self, statement: cst.ImportFrom | cst.Import) -> None:
        if isinstance(statement.names, cst.ImportStar):
            raise RuleError(f"{self.name} imports *")
        for alias in statement.names:
            name = code_of(alias.name)
            local = code_of(alias.asname.name) if alias.asname else name.partition(".")[0]
            if isinstance(statement, cst.ImportFrom) and statement.relative:
                if statement.module is None:
                    self.modules[local] = name
                else:
                    self.internal[local] = (code_of(statement.module), name)
            else:
                self.external.add(local)


class Reach:
    """What is needed of some modules.

    Args:
        sources: The modules by name.
        roots: The names to begin with.
        dropped: What is not to be kept, though something in what is needed has its name.
    """

    def __init__(
        self, sources: Mapping[str, Source], roots: Sequence[Path], dropped: Sequence[Path]
    ) -> None:
        self.sources = sources
        self.kept: set[Path] = set()
        self.loads: set[str] = set()
        self.dropped = set(dropped)
        self.spared: set[Path] = set()
        """What would have been kept, were it not dropped."""
        self.elsewhere: set[str] = set()
        """What is needed of modules that are not here."""
        self._units = {name: units(source.tree.body) for name, source in sources.items()}
        self._waiting: list[tuple[Path, tuple[str, ...], Any]] = []
        for path in roots:
            if not self._add(*path):
                raise LookupError(f"{'.'.join(path)} is not defined")
        while self._settle():
            pass

    def body_of(self, module: str) -> list[Any]:
        """The statements of a module that are needed, imports and docstring aside."""
        if not any(owner == module for owner, *_ in self.kept):
            return []
        found: list[Any] = []
        for unit in self._units[module]:
            if any((module, name) in self.kept for name in unit.names):
                found.extend(self._pruned(module, unit))
            elif not (unit.names or is_import(unit.node) or is_docstring(unit.node)):
                raise RuleError(f"{module}: no rule for {code_of(unit.node).strip()[:200]}")
        return found

    def _pruned(self, module: str, unit: Unit) -> list[Any]:
        node = unit.node
        if not isinstance(node, cst.ClassDef) or not self._is_open(module, node):
            if isinstance(node, cst.ClassDef):
                node = self._without_dropped(module, node)
            return [node, *unit.statements[1:]]
        name, body = node.name.value, []
        for member in units(node.body.body):
            paths = [(module, name, one) for one in member.names]
            if not paths or any(path in self.kept for path in paths):
                first = member.node
                if paths == [(module, name, "__init__")]:
                    first = self._constructor(module, name, first)
                body.extend([first, *member.statements[1:]])
        return [node.with_deep_changes(node.body, body=body)]

    def _without_dropped(self, module: str, node: cst.ClassDef) -> cst.ClassDef:
        kept = []
        for member in units(node.body.body):
            paths = {(module, node.name.value, name) for name in member.names}
            self.spared |= paths & self.dropped
            if not paths & self.dropped:
                kept.extend(member.statements)
        return node.with_deep_changes(node.body, body=kept)

    def _constructor(self, module: str, name: str, node: cst.FunctionDef) -> cst.FunctionDef:
        body = [
            statement
            for statement in node.body.body
            if _set_attribute(statement) is None
            or (module, name, "__init__", _set_attribute(statement)) in self.kept
        ]
        return node.with_deep_changes(node.body, body=body)

    def _is_open(self, module: str, node: cst.ClassDef) -> bool:
        """Whether only what is named is needed of a class: nobody else knows how to call it."""
        if node.decorators:
            return False
        for base in node.bases:
            owner, name = self._resolve(module, code_of(base.value))
            found = owner and next((u.node for u in self._units[owner] if name in u.names), None)
            if not isinstance(found, cst.ClassDef) or not self._is_open(str(owner), found):
                return False
        return True

    def _resolve(self, module: str, name: str) -> tuple[str | None, str]:
        if any(name in unit.names for unit in self._units[module]):
            return module, name
        return self.sources[module].internal.get(name, (None, name))

    def _add(self, module: str, name: str) -> bool:
        path = (module, name)
        if path in self.kept:
            return True
        if module not in self.sources:
            self.elsewhere.add(".".join(path))
            return True
        if path in self.dropped:
            self.spared.add(path)
            return True
        found = [unit for unit in self._units[module] if name in unit.names]
        self.kept.add(path)
        for unit in found:
            node = unit.node
            if isinstance(node, cst.ClassDef) and self._is_open(module, node):
                for part in node.bases:
                    self._use(module, part)
                for member in units(node.body.body):
                    self._wait((module, name), member)
                continue
            if isinstance(node, cst.ClassDef):
                node = self._without_dropped(module, node)
            self._use(module, node)
            for other in unit.names:
                self.kept.add((module, other))
        return bool(found)

    def _wait(self, owner: Path, member: Unit) -> None:
        if not member.names:
            return
        self._waiting.append((owner, member.names, member.node))

    def _settle(self) -> bool:
        """Go one round; whether anything new was found."""
        waiting, self._waiting = self._waiting, []
        moved = False
        for owner, names, node in waiting:
            wanted = [name for name in names if name in self.loads or name.startswith("__")]
            paths = {(*owner, name) for name in names}
            if not wanted:
                self._waiting.append((owner, names, node))
            elif paths & self.dropped:
                self.spared |= paths & self.dropped
            else:
                moved = True
                self.kept |= paths
                is_constructor = names == ("__init__",) and len(owner) == 2
                self._use(owner[0], self._split(owner, node) if is_constructor else node)
        for name in self.sources:
            for unit in self._units[name]:
                if self._is_registered(name, unit):
                    moved |= (name, unit.names[0]) not in self.kept
                    self._add(name, unit.names[0])
        return moved

    def _split(self, owner: Path, node: cst.FunctionDef) -> cst.FunctionDef:
        """Let each attribute that a constructor sets wait until somebody reads it."""
        kept = []
        for statement in node.body.body:
            attribute = _set_attribute(statement)
            if attribute is None:
                kept.append(statement)
            else:
                self._waiting.append(((*owner, "__init__"), (attribute,), statement))
        return node.with_deep_changes(node.body, body=kept)

    def _is_registered(self, module: str, unit: Unit) -> bool:
        """Whether a function is registered, by a decorator, for something that is kept."""
        if not isinstance(unit.node, cst.FunctionDef) or (module, unit.names[0]) in self.kept:
            return False
        arguments = [
            code_of(argument.value)
            for decorator in unit.node.decorators
            if isinstance(decorator.decorator, cst.Call)
            for argument in decorator.decorator.args
        ]
        return any((module, argument) in self.kept for argument in arguments)

    def _use(self, module: str, node: cst.CSTNode) -> None:
        source = self.sources[module]
        for kind, name, base in _uses(node):
            if kind == "name":
                owner, real = self._resolve(module, name)
                if owner is not None:
                    self._add(owner, real)
            elif base in source.modules:
                self._add(source.modules[base], name)
            elif base not in source.external:
                self.loads.add(name)


def _uses(node: Any) -> Iterator[tuple[str, str, str]]:
    """Names and attributes that code reads: the kind, the name, and an attribute's plain base."""
    if isinstance(node, cst.Name):
        yield "name", node.value, ""
    elif isinstance(node, cst.Attribute):
        base = node.value.value if isinstance(node.value, cst.Name) else ""
        yield "attribute", node.attr.value, base
        yield from _uses(node.value)
    elif isinstance(node, (cst.AssignTarget, cst.AnnAssign)) and isinstance(
        node.target, cst.Attribute
    ):
        yield from _uses(node.target.value)
        for child in node.children:
            if child is not node.target:
                yield from _uses(child)
    elif isinstance(node, cst.AnnAssign) and code_of(node.annotation.annotation) == "TypeAlias":
        # An alias may be spelled as a string.
        for name in re.findall(r"[A-Za-z_]\w*", code_of(node)):
            yield "name", name, ""
    elif isinstance(node, cst.Arg):
        yield from _uses(node.value)
    else:
        for child in node.children:
            yield from _uses(child)


def _set_attribute(statement: Any) -> str | None:
    """The attribute of `self` that a statement sets, if that is all it does."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    small = statement.body[0]
    target: Any = None
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
    elif isinstance(small, cst.AnnAssign):
        target = small.target
    if isinstance(target, cst.Attribute) and code_of(target.value) == "self":
        return target.attr.value
    return None
