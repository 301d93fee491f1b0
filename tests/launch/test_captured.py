"""What a kernel read from Python may change: the next launch sees it. Python itself says what it has to see."""

from __future__ import annotations

import importlib
import inspect
import random
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import cutile as ct
from cuda_async import Device
from cutile import api, f32
from cutile.entry import Kernel
from cutile.frontend.captures import Captures
from cutile.launch import target
from tests.launch.captured import CAPTURED
from tests.launch.test_fastpath import bytecodes
from tests.support.kernels import define, kernel

stream = Device.host().new_stream()
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference be the host's usual backend: launches take their quickest way, and nothing is built."""
    usual = target._targets.setdefault(None, {})  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(usual, stream.device, target.target_of(stream.device, "reference"))


class Module:
    """A kernel that adds expressions to what it is given, and what they mean in Python now."""

    def __init__(self, names: Sequence[str]) -> None:
        rows = [CAPTURED[name] for name in names]
        self.expressions = [each.expression for each in rows]
        body = "".join(f"    t = t + {each}\n" for each in self.expressions)
        text = "\n".join(each.definitions for each in rows)
        text += f"\ndef added(y: Mut):\n    t = y.load()\n{body}    y.store(t)\n"
        function = define(text, types=types, text_function=define)
        self.scope: dict[str, Any] = function.__globals__
        self.kernel: Kernel = ct.entry(function)
        self.y = api.zeros((4,), f32).sync_on(stream)

    def meant(self) -> float:
        """What Python makes of the expressions."""
        return float(sum(eval(each, self.scope) for each in self.expressions))

    def change(self, name: str, n: int) -> None:
        """Change one kind of state."""
        self.scope["n"] = n
        exec(CAPTURED[name].change, self.scope)

    def parts(self) -> Any:
        """The output, zeroed."""
        self.y = api.zeros((4,), f32).sync_on(stream)
        return self.y.partition((4,))

    def quick(self) -> float:
        """By the short way, which recognizes what was launched before."""
        return float(self.kernel(self.parts()).first().unpartition().to_host_vec().sync_on(stream)[0])

    def long(self) -> float:
        """By the long way: arguments by name."""
        return float(self.kernel(y=self.parts()).first().unpartition().to_host_vec().sync_on(stream)[0])

    def lazy(self) -> float:
        """With an argument that has yet to run."""
        launch = self.kernel(api.zeros((4,), f32).partition((4,)))
        return float(launch.first().unpartition().to_host_vec().sync_on(stream)[0])


WAYS: dict[str, Callable[[Module], float]] = {"quick": Module.quick, "long": Module.long, "lazy": Module.lazy}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_change_is_seen(name: str) -> None:
    module = Module([name])
    for _ in range(2):  # the second of each way is the one that finds everything ready
        for launch in WAYS.values():
            assert launch(module) == module.meant()
    for n, launch in zip((7, 8, 9), WAYS.values(), strict=True):
        before = module.meant()
        module.change(name, n)
        assert module.meant() != before, "a change that changes nothing shows nothing"
        assert launch(module) == module.meant()


@pytest.mark.parametrize("seed", range(3))
def test_changes_in_any_order(seed: int) -> None:
    """Kernels that read several things at once: what one of them tells does not hide another."""
    draw = random.Random(seed)
    names = draw.sample(sorted(CAPTURED), 8)
    module = Module(names)
    assert module.quick() == module.meant()
    for n in range(20, 32):
        module.change(draw.choice(names), n)
        assert draw.choice([Module.quick, Module.long])(module) == module.meant()


def test_what_stays_the_same_compiles_once() -> None:
    """A value made anew that is equal is no change; nor are names that the kernel does not read."""
    module = Module(["global_tuple", "instance_anew", "module_attribute", "class_method"])
    module.quick()
    plan = next(iter(module.kernel.cache.plans.values()))
    ready = plan.memo[stream.device]
    module.scope["SIZES"] = eval("(1, (int('2'), 3))")
    module.scope["CONFIG_a"] = module.scope["Config_a"](1)
    module.scope["m"].OTHER = 3
    module.quick()
    assert plan.memo[stream.device] is ready


DICTS = [name for name in CAPTURED if name.startswith("dict")]


@pytest.mark.parametrize("name", DICTS)
def test_a_dict_that_stays_the_same_is_not_compared_value_by_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick test knows each key: a launch that fell back to the slow way was compiled again each time."""
    module = Module([name])
    module.quick()
    monkeypatch.setattr(Captures, "unchanged", None)
    assert module.quick() == module.meant()


@pytest.mark.skipif(sys.version_info[:2] != (3, 13), reason="other versions of Python have other instructions")
@pytest.mark.parametrize(("items", "count"), [({}, 19), ({"a": 1}, 25), ({"a": 1, "b": 2}, 31), ({1: 1}, 28)])
def test_a_dict_costs_no_more_bytecodes(items: dict[Any, Any], count: int) -> None:
    """With the length of the dict, and no order, it was 21, 30, 39 and 30."""
    captures = Captures()
    captures.items(items)
    same = captures.watch()
    assert same()
    assert bytecodes(same) == count


def test_nan_is_no_key() -> None:
    """No lookup by its text finds it."""
    with pytest.raises(ct.KernelTypeError, match="keys that are no numbers"):
        filled(kernel("def k(y: Mut):\n    y.store(TABLE['a'] + 0 * y.load())\n", TABLE={"a": 1.0, float("nan"): 2.0}))


def test_a_bound_launch_and_a_graph_keep_what_they_were_made_of() -> None:
    module = Module(["global", "class_attribute"])
    y, z = (api.zeros((4,), f32).sync_on(stream) for _ in range(2))
    bound = module.kernel(y.mut.partition((4,))).bind(stream)
    graph = module.kernel(z.mut.partition((4,))).graph_on(stream)
    module.change("global", 50)
    bound()
    graph.launch().sync_on(stream)
    assert y.to_host_vec().sync_on(stream)[0] == 2.0
    assert z.to_host_vec().sync_on(stream)[0] == 2.0
    assert module.quick() == 51.0


def test_a_change_is_compiled_off_the_event_loop() -> None:
    module = Module(["global"])

    def prepared() -> int:
        launch = module.kernel(module.parts())
        count = len(list(launch.preparations(stream.device)))
        launch.discard()
        return count

    module.quick()
    assert prepared() == 0
    module.change("global", 50)
    assert prepared() == 1


KERNEL = """
def filled(y: Mut, *, N: Const = {n}):
    y.store({value} * N + 0 * y.load())
"""


def filled(kernel: Kernel, **named: Any) -> float:
    y = api.zeros((4,), f32).sync_on(stream)
    return float(kernel(y.partition((4,)), **named).first().unpartition().to_host_vec().sync_on(stream)[0])


def test_the_kernel_itself_may_get_other_code_and_other_defaults() -> None:
    function = define(KERNEL.format(n=1, value=3))
    kernel = ct.entry(function)
    assert filled(kernel) == 3.0
    early = kernel(api.zeros((4,), f32).sync_on(stream).partition((4,)))
    function.__code__ = define(KERNEL.format(n=1, value=5)).__code__
    assert filled(kernel) == 5.0
    cast("Any", function).__kwdefaults__["N"] = 2
    assert filled(kernel) == 10.0
    assert filled(kernel, N=4) == 20.0
    kernel.__code__ = define("def filled(y: Mut, a: ct.f32):\n    y.store(a + 0 * y.load())\n").__code__
    assert filled(kernel, a=7.0) == 7.0
    assert early.first().unpartition().to_host_vec().sync_on(stream)[0] == 3.0, "it was made of the code of then"


def test_a_kernel_that_becomes_another_shows_the_other_one() -> None:
    old, new = (
        ct.entry(define(f"def filled(y: Mut, {name}: ct.f32):\n    'Fill with {name}.'\n    y.store({name})\n"))
        for name in ("a", "b")
    )
    old.become(new)
    assert old.__doc__ == new.__doc__
    assert "Fill with b." in (old.__doc__ or "")
    assert list(inspect.signature(old).parameters) == ["y", "b"]
    assert (old.__wrapped__, old.__annotations__) == (new.__wrapped__, new.__annotations__)  # type: ignore[attr-defined]
    assert filled(old, b=3.0) == 3.0
    old.__code__ = define("def filled(y: Mut, c: ct.f32):\n    y.store(c)\n").__code__
    assert filled(old, c=4.0) == 4.0
    assert (old.__doc__ or "").startswith("filled(y: Mut, c: ct.f32)")
    assert list(inspect.signature(old).parameters) == ["y", "c"]


def test_a_helper_is_compiled_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file may have been edited since: moved text is found, changed text is refused, and a reload mends it."""
    file = tmp_path / "edited_helpers.py"
    file.write_text("def moved(t):\n    return t + 1\n\n\ndef changed(t):\n    return t + 2\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    helpers = importlib.import_module("edited_helpers")
    text = "def filled(y: Mut):\n    y.store(h.{0}(y.load()))\n"
    moved, changed = (ct.entry(define(text.format(name), h=helpers)) for name in ("moved", "changed"))
    file.write_text("# moved down\n\n\ndef changed(t):\n    return t * 20\n\n\ndef moved(t):\n    return t + 1\n")
    assert filled(moved) == 1.0
    with pytest.raises(ct.KernelSyntaxError, match=r"(?s)edited since it was imported.*importlib\.reload"):
        filled(changed)
    sys.modules.pop("edited_helpers")
    changed.__wrapped__.__globals__["h"] = importlib.import_module("edited_helpers")  # type: ignore[attr-defined]
    assert filled(changed) == 0.0


def test_autoreload_of_a_notebook(tmp_path: Path) -> None:
    """Kernels and helpers that were imported by name, edited in their file, launched again."""
    pytest.importorskip("IPython")
    command = [sys.executable, "-m", "tests.launch.autoreload_run", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, cwd=ROOT)
    assert ran.stdout.splitlines()[-1:] == ["all seen"], ran.stdout + ran.stderr
