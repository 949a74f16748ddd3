"""Join pruned modules into one file of another package."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import libcst as cst

from .fold import code_of
from .reach import Source, imports_of, is_import
from .rules import RuleError

Rewrite = Callable[[cst.ImportFrom], "cst.ImportFrom | None"]
"""Gives an import as it stands in the new file, or None where it is not needed there."""


def join(
    docstring: str,
    parts: Sequence[tuple[Source, Sequence[Any]]],
    rewrite: Rewrite,
    *,
    exports: Sequence[str] = (),
    imports: Sequence[str] = (),
) -> str:
    """One file of several modules' statements, its imports neither sorted nor pruned yet.

    Args:
        docstring: The file's own.
        parts: The modules, and what is needed of each.
        rewrite: What becomes of an import.
        exports: What goes into `__all__`, if anything.
        imports: Lines to import what is exported but not used.

    Raises:
        RuleError: If two modules define the same name.
    """
    head: list[Any] = []
    body: list[Any] = []
    defined: set[str] = set()
    for source, statements in parts:
        names = {one for statement in statements for one in _names(statement)}
        if defined & names:
            raise RuleError(f"defined twice in one file: {', '.join(sorted(defined & names))}")
        defined |= names
        for statement in source.tree.body:
            if is_import(statement):
                head.extend(_rewritten(statement, rewrite))
        body.extend(statements)
    docstring = docstring.strip()
    if "\n" in docstring:
        docstring += "\n"
    public = "".join(f"    {name!r},\n" for name in exports)
    lines = [
        f'"""{docstring}"""\n\n',
        "from __future__ import annotations\n",
        *(f"{line}\n" for line in imports),
        *(cst.Module([statement]).code for statement in head),
        f"\n__all__ = [\n{public}]\n\n" if exports else "\n",
        cst.Module(body).code,
    ]
    return "".join(lines)


def _names(statement: Any) -> list[str]:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return [statement.name.value]
    return []


def _rewritten(statement: Any, rewrite: Rewrite) -> list[Any]:
    if isinstance(statement, cst.If):
        inner = [one for line in statement.body.body for one in _rewritten(line, rewrite)]
        return [statement.with_deep_changes(statement.body, body=inner)] if inner else []
    plain = statement.with_changes(leading_lines=[])
    (one,) = imports_of(plain)
    if isinstance(one, cst.Import):
        return [plain]
    if one.module is not None and code_of(one.module) == "__future__":
        return []
    new = rewrite(one)
    return [] if new is None else [plain.with_changes(body=[new])]


def only(statement: cst.ImportFrom, names: Collection[str]) -> cst.ImportFrom | None:
    """An import of those of its names that are wanted; None without any."""
    if isinstance(statement.names, cst.ImportStar):
        raise RuleError("import *")
    kept = [
        alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        for alias in statement.names
        if code_of(alias.name) in names
    ]
    return statement.with_changes(names=kept) if kept else None


def from_module(statement: cst.ImportFrom, module: str) -> cst.ImportFrom:
    """An import of the same names from another module, spelled as in `from … import`."""
    stripped = module.lstrip(".")
    dots = [cst.Dot() for _ in range(len(module) - len(stripped))]
    parsed: Any = cst.parse_expression(stripped) if stripped else None
    return statement.with_changes(
        relative=dots,
        module=parsed,
        lpar=None,
        rpar=None,
        whitespace_after_from=cst.SimpleWhitespace(" "),
        whitespace_before_import=cst.SimpleWhitespace(" "),
    )


class Wording(cst.CSTTransformer):
    """Comments as full sentences, no ignores of rules that are not checked, no dead promises.

    Args:
        linted: Beginnings of the codes of the rules that are checked where the code goes.
        gone: Errors that no longer exist; docstrings do not promise them.
    """

    def __init__(self, linted: tuple[str, ...], gone: Collection[str]) -> None:
        super().__init__()
        self._linted = linted
        self._gone = set(gone)

    def leave_TrailingWhitespace(
        self, original_node: cst.TrailingWhitespace, updated_node: cst.TrailingWhitespace
    ) -> cst.TrailingWhitespace:
        comment = updated_node.comment
        if comment is None:
            return updated_node
        text = self._trailing(comment.value)
        if text is None:
            return updated_node.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
        return updated_node.with_changes(comment=comment.with_changes(value=text))

    def _trailing(self, text: str) -> str | None:
        found = re.match(r"# noqa: ([A-Z0-9, ]+)", text)
        if found:
            codes = [code.strip() for code in found[1].split(",")]
            checked = [code for code in codes if code.startswith(self._linted)]
            return f"# noqa: {', '.join(checked)}" if checked else None
        if text.startswith("# type: ignore"):
            return text.partition("  #")[0]
        return _sentence([text])[0]

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Put the comments above a statement in order, whatever statement it is."""
        updated: Any = super().on_leave(original_node, updated_node)
        lines = getattr(updated, "leading_lines", None)
        if lines and any(line.comment for line in lines):
            updated = updated.with_changes(leading_lines=_sentences(lines))
        return updated

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        if not updated_node.value.startswith('"""') or "Raises:" not in updated_node.value:
            return updated_node
        return updated_node.with_changes(value=without_raises(updated_node.value, self._gone))


def _sentences(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    found: list[cst.EmptyLine] = []
    block: list[cst.EmptyLine] = []
    for line in [*lines, cst.EmptyLine()]:
        if line.comment is not None:
            block.append(line)
            continue
        texts = _sentence([one.comment.value for one in block if one.comment])
        found.extend(
            one.with_changes(comment=cst.Comment(text))
            for one, text in zip(block, texts, strict=True)
        )
        block = []
        found.append(line)
    return found[:-1]


def _sentence(lines: list[str]) -> list[str]:
    """A comment of some lines, from its capital to its full stop."""
    if not lines or lines[0].startswith("# ----"):
        return lines
    *_, last = lines
    lines = [*lines[:-1], last if last[-1] in ".:?!" else f"{last}."]
    word = lines[0].removeprefix("# ").partition(" ")[0]
    if re.fullmatch(r"[a-z]+,?", word):
        lines[0] = f"# {lines[0][2].upper()}{lines[0][3:]}"
    return lines


def without_raises(docstring: str, gone: Collection[str]) -> str:
    """A docstring without the entries of some errors, nor the section when that leaves none."""
    lines = docstring.split("\n")
    start = next((at for at, line in enumerate(lines) if line.strip() == "Raises:"), None)
    if start is None:
        return docstring
    indent = len(lines[start]) - len(lines[start].lstrip())
    kept: list[str] = []
    end = start + 1
    skipping = False
    while end < len(lines) and lines[end].startswith(" " * (indent + 1)):
        depth = len(lines[end]) - len(lines[end].lstrip())
        if depth == indent + 4:
            skipping = lines[end].strip().partition(":")[0] in gone
        if not skipping:
            kept.append(lines[end])
        end += 1
    before, after = lines[:start], lines[end:]
    if kept:
        return "\n".join([*before, lines[start], *kept, *after])
    while before and not before[-1].strip():
        before.pop()
    if len(before) == 1 and after == [" " * indent + '"""']:
        return before[0] + '"""'
    return "\n".join([*before, *after])
