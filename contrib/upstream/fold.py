"""Simplify code under assumptions, such as "there is no scope"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst

_EMPTY = cst.Module([])


def code_of(node: cst.CSTNode) -> str:
    """A node's source, without what surrounds it."""
    return _EMPTY.code_for_node(node)


class Fold(cst.CSTTransformer):
    """Takes expressions for true or false, and removes what can then not happen.

    Args:
        assumed: Expressions, as they are spelled, and whether each is true.
        removed: Names of parameters that nobody passes any more. Their arguments go as well.
    """

    def __init__(self, assumed: Mapping[str, bool], removed: Sequence[str] = ()) -> None:
        super().__init__()
        self.assumed = assumed
        self.removed = set(removed)
        self.used: set[str] = set()
        self._elifs: set[cst.CSTNode] = set()

    def truth(self, node: cst.BaseExpression) -> bool | None:
        """Whether an expression is true or false by assumption; None when nothing is known."""
        spelled = code_of(node)
        if spelled in self.assumed:
            self.used.add(spelled)
            return self.assumed[spelled]
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            inner = self.truth(node.expression)
            return None if inner is None else not inner
        if isinstance(node, cst.BooleanOperation):
            decisive = isinstance(node.operator, cst.Or)
            sides = {self.truth(node.left), self.truth(node.right)}
            if decisive in sides:
                return decisive
            return None if None in sides else not decisive
        return None

    def _outcome(self, test: cst.BaseExpression) -> bool | None:
        """Whether a condition holds, by assumption or because it has been simplified to that."""
        spelled = code_of(test)
        return spelled == "True" if spelled in ("True", "False") else self.truth(test)

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        whole = self.truth(updated_node)
        if whole is not None:
            return cst.Name(str(whole))
        if self.truth(updated_node.left) is not None:
            return updated_node.right
        return updated_node if self.truth(updated_node.right) is None else updated_node.left

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self._elifs.add(node.orelse)

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        holds = self._outcome(updated_node.test)
        if holds is None:
            return updated_node
        return updated_node.body if holds else updated_node.orelse

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        holds = self._outcome(updated_node.test)
        if holds is None:
            return updated_node
        if original_node in self._elifs:
            taken = cst.Else(updated_node.body) if holds else updated_node.orelse
            return taken or cst.RemoveFromParent()
        orelse = updated_node.orelse
        if not holds and isinstance(orelse, cst.If):
            return orelse
        body: Any = updated_node.body if holds else orelse and orelse.body
        return cst.RemoveFromParent() if body is None else cst.FlattenSentinel(body.body)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> Any:
        return updated_node if updated_node.body.body else cst.RemoveFromParent()

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        kept: list[cst.BaseStatement] = []
        for statement in updated_node.body:
            kept.append(statement)
            if isinstance(statement, cst.SimpleStatementLine) and isinstance(
                statement.body[-1], (cst.Return, cst.Raise)
            ):
                break
        return updated_node.with_changes(body=kept)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        # What came after it is gone.
        *before, last = updated_node.body.body
        if not before or code_of(last).strip() != "return":
            return updated_node
        return updated_node.with_deep_changes(updated_node.body, body=before)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        removed = {f"self.{name} = {name}" for name in self.removed}
        is_removed = code_of(updated_node.body[0]) in removed
        return cst.RemoveFromParent() if is_removed else updated_node

    # A last comma where something was removed would keep the rest on lines of their own.
    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if len(updated_node.args) in (0, len(original_node.args)):
            return updated_node
        return updated_node.with_changes(args=_without_comma(updated_node.args))

    def leave_Parameters(
        self, original_node: cst.Parameters, updated_node: cst.Parameters
    ) -> cst.Parameters:
        changes = {}
        for group in ("params", "kwonly_params"):
            before, after = (getattr(node, group) for node in (original_node, updated_node))
            if 0 < len(after) < len(before):
                changes[group] = _without_comma(after)
        return updated_node.with_changes(**changes)

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> Any:
        is_removed = updated_node.name.value in self.removed
        return cst.RemoveFromParent() if is_removed else updated_node

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> Any:
        keyword = updated_node.keyword and updated_node.keyword.value
        names = {node.value for node in _names(updated_node.value)}
        passes = isinstance(original_node.value, (cst.Name, cst.BooleanOperation))
        is_removed = keyword in self.removed or (passes and bool(names & self.removed))
        return cst.RemoveFromParent() if is_removed else updated_node


def _names(node: cst.CSTNode) -> list[cst.Name]:
    found = [node] if isinstance(node, cst.Name) else []
    return found + [name for child in node.children for name in _names(child)]


def _without_comma(nodes: Sequence[Any]) -> list[Any]:
    return [*nodes[:-1], nodes[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
