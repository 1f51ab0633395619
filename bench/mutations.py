"""What may be changed in a module, one place at a time: the mutants of `bench.mutants`."""

import ast
import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one module. Its name stays the same when lines move."""

    path: Path
    module: str
    scope: str
    """Dotted name of the class or function; empty for the module itself."""
    within: bool
    """In the body of a function, so that the change can be put into a function that is there."""
    name: str
    line: int
    index: int
    """Index of the changed node, in `ast.walk` of the module's tree."""
    number: int
    """Which of the node's changes it is."""

    def tree(self) -> ast.Module:
        """Return the changed tree of the module: built when it is planted, since all are many."""
        tree = ast.parse(source_of(self.path))
        node = list(ast.walk(tree))[self.index]
        assert isinstance(node, ast.expr)  # _places yields no other
        _, changed = _changes(node)[self.number]
        return _with(tree, node, changed)


@functools.cache
def source_of(path: Path) -> str:
    """Return a module as it was when it was first asked for, so that it may be edited meanwhile."""
    return path.read_text()


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    tree = ast.parse(source_of(path))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    within = {part for row in functions for line in row.body for part in ast.walk(line)}
    counts: dict[str, int] = {}
    for scope, index, node in _places(tree):
        for number, (what, _) in enumerate(_changes(node)):
            key = f"{module}:{scope}:{what}"
            counts[key] = counts.get(key, 0) + 1
            yield Mutant(
                path=path,
                module=module,
                scope=scope,
                within=node in within,
                name=f"{key}:{counts[key]}",
                line=node.lineno,
                index=index,
                number=number,
            )


def _places(tree: ast.Module) -> Iterator[tuple[str, int, ast.expr]]:
    """Yield the scope's name, the index in `ast.walk` and the node of what can be changed."""
    scopes: dict[ast.AST, str] = {}
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, _NAMED):
            skipped |= {part for row in node.decorator_list for part in ast.walk(row)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            skipped |= {row.value for row in node.keywords}  # `strict` holds, or there is a bug
        for child in ast.iter_child_nodes(node):
            own = getattr(node, "name", None) if isinstance(node, _NAMED) else None
            scopes[child] = ".".join(filter(None, (scopes.get(node), own)))
    for index, node in enumerate(ast.walk(tree)):
        if node in skipped:
            continue
        if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
            yield scopes.get(node, ""), index, node


_NAMED = (ast.FunctionDef, ast.ClassDef)


def _changes(node: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return what can be changed in one node, each with its name."""
    found: list[tuple[str, ast.expr]] = []
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[place] = _COMPARISONS[type(operator)]()
            found.append((f"{type(operator).__name__}->{type(other.ops[place]).__name__}", other))
    elif isinstance(node, ast.BoolOp):
        swapped = copy.deepcopy(node)
        swapped.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        found.append((f"{type(node.op).__name__}->{type(swapped.op).__name__}", swapped))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found.append(("Not->", node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        found.append((f"{node.value}->{not node.value}", ast.Constant(not node.value)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        changed = node.value + 1 if isinstance(node.value, int) else node.value * 2 + 0.5
        found.append((f"{node.value}->{changed}", ast.Constant(changed)))
    return found


def _with(tree: ast.Module, target: ast.expr, changed: ast.expr) -> ast.Module:
    """Return the tree with one of its nodes replaced."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is target:
                return ast.copy_location(changed, node)
            return self.generic_visit(node)

    Replace().visit(tree)
    return ast.fix_missing_locations(tree)
