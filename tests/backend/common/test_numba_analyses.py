"""The replacements of Numba's analyses give Numba's results."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numba.core.analysis as _analysis
import numba.core.base as _base
import numba.core.postproc as _postproc
import numba.core.serialize as _serialize
import numba.core.ssa as _ssa
import numba.core.types as _types
import pytest

from cutile.backend.common import numba_analyses
from cutile.backend.cpu import build
from cutile.backend.cpu.backend import BACKEND
from cutile.backend.cpu.target import host_target
from cutile.dtypes import i32
from tests.backend.cpu.programs import source
from tests.support.programs import mut, scalar

analysis: Any = _analysis
base: Any = _base
postproc: Any = _postproc
serialize: Any = _serialize
ssa: Any = _ssa
types: Any = _types

TEXT = """
def k(y: Mut, n: i32):
    t = y.load()
    count = 0
    for i in range(n):
        if i > 2:
            t = t * 0.5
            count = count + i
        for j in range(i):
            t = t + j
            if j == 5:
                count = count * 2
    y.store(t + count)
"""


def program() -> Any:
    return source(TEXT, {"y": mut(64), "n": scalar(i32)})


def test_what_is_live_is_what_numba_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    live_map, numba_live_map = numba_analyses.live_map, analysis.compute_live_map

    def both(graph: Any, blocks: Any, used: Any, defined: Any) -> dict[int, set[str]]:
        expected = numba_live_map(graph, blocks, used, defined)
        live = live_map(graph, blocks, used, defined)
        assert {at: set(expected[at]) for at in expected} == live
        sizes.append(len(blocks))
        return live

    monkeypatch.setattr(numba_analyses, "live_map", both)
    BACKEND.build(program(), host_target())
    assert max(sizes) > 8


def test_a_statement_s_variables_are_those_that_numba_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    numba_listing, listing = analysis.ir.Inst._rec_list_vars, numba_analyses._listing(analysis.ir)
    counts: list[int] = []

    def both(statement: Any, value: Any) -> list[Any]:
        variables = listing(statement, value)
        assert list(map(id, variables)) == list(map(id, numba_listing(statement, value)))
        counts.append(len(variables))
        return variables

    def listing_of(ir: Any) -> Any:
        del ir
        return both

    monkeypatch.setattr(numba_analyses, "_listing", listing_of)
    BACKEND.build(program(), host_target())
    assert {0, 1, 2, 3} <= set(counts)


def test_numba_makes_the_same_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    text, visits = assembly_and_statements()

    @contextmanager
    def none(*modules: Any) -> Generator[None]:
        yield

    monkeypatch.setattr(build, "fast_analyses", none)
    slow_text, slow_visits = assembly_and_statements()
    assert slow_text == text
    assert slow_visits > 4 * visits


def test_lifetimes_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = 0
    dead_maps = analysis.compute_dead_maps

    def counted(*arguments: Any) -> Any:
        nonlocal times
        times += 1
        return dead_maps(*arguments)

    monkeypatch.setattr(analysis, "compute_dead_maps", counted)
    BACKEND.build(program(), host_target())
    assert times == 1


def assembly_and_statements() -> tuple[str, int]:
    """Machine code, and how many statements Numba's SSA pass has visited."""
    visits = 0
    run_pass = ssa._run_ssa_block_pass

    def counted(states: Any, block: Any, handler: Any) -> Iterator[Any]:
        nonlocal visits
        visits += len(block.body)
        yield from run_pass(states, block, handler)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssa, "_run_ssa_block_pass", counted)
        text = build.assembly(program())
    return re.sub(r"B\dv\d+B", "", text), visits  # Numba counts the functions of a process in their names


def test_numba_is_as_it_was_behind_a_compilation() -> None:
    def of_numba() -> tuple[Any, ...]:
        functions = (analysis.ir.Inst._rec_list_vars, postproc.PostProcessor.run, types.Function.get_call_type)
        return (analysis.compute_live_map, ssa._run_block_rewrite, base._has_loc, serialize.dumps, *functions)

    before = of_numba()
    BACKEND.build(program(), host_target())
    assert of_numba() == before


def test_what_a_compilation_asked_numba_is_known_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(first: Any, *others: Any) -> Any:
            is_cast = isinstance(getattr(first, "typing_key", None), types.Type)  # a new function in each kernel
            questions.append("cast" if is_cast else name)
            return original(first, *others)

        monkeypatch.setattr(owner, name, counting)

    count(types.Function, "get_call_type")
    count(base, "_has_loc")
    count(serialize, "dumps")
    numba_analyses._SIGNATURES.clear()
    BACKEND.build(program(), host_target())
    first = Counter(questions)
    assert first.keys() == {"get_call_type", "cast", "_has_loc", "dumps"}
    questions.clear()
    BACKEND.build(program(), host_target())
    assert Counter(questions).keys() == {"cast"}


def test_signatures_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_analyses, "_MAX_SIGNATURES", 5)
    numba_analyses._SIGNATURES.clear()
    BACKEND.build(program(), host_target())
    assert 0 < len(numba_analyses._SIGNATURES) <= 5


def test_exceptions_are_pickled_as_numba_does() -> None:
    dumps = numba_analyses._pickled_once(serialize.dumps)
    values = [
        (ValueError, ("range() arg 3 must not be zero",), None),
        (ValueError, (1,), None),
        (ValueError, (True,), None),
        (ValueError, ("text",), ("function", "file", 3)),
        [1, 2],
    ]
    for value in values:
        assert dumps(value) == dumps(value) == serialize.dumps(value)


def test_nothing_is_collected_while_numba_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[bool] = []
    compile_extra = build.compiler.compile_extra

    def watched(*arguments: Any, **named: Any) -> Any:
        states.append(gc.isenabled())
        return compile_extra(*arguments, **named)

    monkeypatch.setattr(build.compiler, "compile_extra", watched)
    assert gc.isenabled()
    BACKEND.build(program(), host_target())
    assert states == [False]
    assert gc.isenabled()
