"""What GPU intrinsics do without a word of Python has its reason at the line: PTX, barriers, fences, numbers."""

import ast
import io
import tokenize
from collections.abc import Iterator

from tests.architecture.sources import ROOT

INTRINSICS = ROOT / "cutile/backend/cuda/intrinsics"
ORDERS = frozenset({"barrier", "barrier_any", "begin_group", "synchronize_warp", "proxy_fence", "device_fence"})
"""Functions by which threads wait for each other, or by which memory is ordered."""
REACH = 6
"""Lines above a statement in which the comment about it may stand."""
PLAIN = frozenset({-1, 0, 1, 2})
"""Numbers that need no reason."""
BITS = frozenset({8, 16, 32, 64})
"""Widths of elements and registers, which need none where they are compared with `.bits`, or divide it."""
UNITS = ("_BYTES", "_BITS")
"""Ends of names that say what a number is."""


def _comments(text: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of functions, in the order of their lines."""
    found = (each for each in ast.walk(node) if isinstance(each, ast.stmt))
    yield from sorted(found, key=lambda statement: statement.lineno)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement's expressions, without those of statements inside it."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        yield from ast.walk(child)


def _last_line(statement: ast.stmt) -> int:
    """The last line of a simple statement, or of the head of another one."""
    inner = [child.lineno for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
    return min(inner) - 1 if inner else statement.end_lineno or statement.lineno


def _plain(statement: ast.stmt) -> set[ast.AST]:
    """Numbers that their expression explains: `x.bits * n // 8`, `ir.IntType(8)`, `[INTEGER] * 4`."""
    plain: set[ast.AST] = set()
    for node in _own(statement):
        inner = list(ast.walk(node))
        numbers = {part for part in inner if isinstance(part, ast.Constant)}
        if isinstance(node, ast.BinOp | ast.Compare) and any(
            isinstance(part, ast.Attribute) and part.attr == "bits" for part in inner
        ):
            plain |= {number for number in numbers if number.value in BITS}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "ir.IntType":
            plain |= numbers
        elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.List | ast.Tuple):
            plain.add(node.right)
    return plain


def _need(statement: ast.stmt) -> Iterator[tuple[int, str]]:
    """What in a statement needs a reason, with its line."""
    plain = _plain(statement)
    for node in _own(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "asm":
                yield node.lineno, "inline PTX"
            elif node.func.id in ORDERS:
                yield node.lineno, f"{node.func.id}()"
        elif isinstance(node, ast.Constant) and type(node.value) is int and not {node.value, node} & (PLAIN | plain):
            yield node.lineno, f"the number {node.value}"


def _is_named(statement: ast.stmt, following: ast.stmt | None) -> bool:
    """Whether a module's constant has a docstring, or a unit in its name."""
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return True
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]).endswith(UNITS)


def unexplained(text: str, where: str) -> Iterator[str]:
    """Yield what has no comment at its lines or just above, which serves one barrier, fence or piece of PTX."""
    comments, tree = _comments(text), ast.parse(text)
    heads = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    named = {
        statement
        for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True)
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) or _is_named(statement, following)
    }
    served = 0  # the last line of the statement before that is a barrier, a fence or PTX
    for statement in _statements(tree):
        needs = [] if statement in named else list(_need(statement))
        if not needs:
            continue
        line, need = needs[0]
        last = _last_line(statement)
        first = max([statement.lineno - REACH, *(head for head in heads if head <= statement.lineno)])
        if any(not need.startswith("the number") for _, need in needs):
            first, served = max(first, served + 1), last
        if not comments & set(range(first, last + 1)):
            yield f"{where}:{line}: {need} without its reason at the line"


def test_reasons_stand_at_the_line() -> None:
    files = sorted(INTRINSICS.glob("*.py"))
    assert [line for path in files for line in unexplained(path.read_text(encoding="utf-8"), path.name)] == []


BAD = '''
LANES = 32
"""Threads of a warp."""
SUM_BYTES = 4
AHEAD = 8

def f(b, x):
    # One reason.
    asm(b, VOID, [], "fence.acq_rel.gpu;", "~{memory}")
    barrier(b)
    y = b.shl(x, i32c(7))
    # Another one, which is about the number alone.
    return b.add(b.mul(y, i32c(dtype.bits // 8)), i32c(12))

def g(b, x):
    b.store(x, i32c(1))
    b.store(x, i32c(24))
    asm(b, VOID, [], "exit;", "~{memory}")
'''


def test_each_breach_is_reported() -> None:
    lines = [line.removesuffix(" without its reason at the line") for line in unexplained(BAD, "bad.py")]
    assert lines == [
        "bad.py:5: the number 8",
        "bad.py:10: barrier()",
        "bad.py:17: the number 24",
        "bad.py:18: inline PTX",
    ]
