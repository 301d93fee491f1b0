"""Everything that a kernel can read from Python, as data: how it is defined, how it is read, how it is changed.

An expression has the same value in Python as in a kernel, so that Python says what a launch has to see.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Captured:
    """One kind of captured state.

    Attributes:
        definitions: what stands in the module.
        expression: a number that depends on it.
        change: a statement that changes it; `n` is a number that is another one each time.
    """

    definitions: str
    expression: str
    change: str


_CONFIG = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class {0}:
    size: int = 1
    @property
    def twice(self):
        return 2 * self.size
    def plus(self, other):
        return self.size + other
    @classmethod
    def of_class(cls):
        return 1
    @staticmethod
    def of_none():
        return 1
{1} = {0}()
"""


def _record(name: str) -> str:
    return _CONFIG.format(f"Config_{name}", f"CONFIG_{name}")


def _code(value: str = "n", parameters: str = "") -> str:
    """The code of another function, which has the text of a file."""
    return f"text_function('def other({parameters}):\\n    return ' + repr({value}) + '\\n').__code__"


def _ordered(name: str, items: str) -> str:
    """A dict, and a function whose result depends on its order."""
    return (
        f"{name} = {items}\ndef read_{name}(_=None):\n    r = 0\n    for k in {name}:\n"
        f"        r = 10 * r + {name}[k]\n    return r\n"
    )


def _reordered(name: str) -> str:
    """The first item becomes the last one."""
    return f"k = next(iter({name}))\n{name}[k] = {name}.pop(k)"


CAPTURED: dict[str, Captured] = {
    "global": Captured("NUMBER = 1", "NUMBER", "NUMBER = n"),
    "global_tuple": Captured("SIZES = (1, (2, 3))", "SIZES[1][0]", "SIZES = (1, (n, 3))"),
    "global_deleted": Captured(
        "def kept(x):\n    return 5\nabs = kept",
        "abs(-2)",
        "if 'abs' in globals():\n    del abs\nelse:\n    abs = kept",
    ),
    "builtin_hidden": Captured("", "max(1, 2)", "max = text_function(f'def m(a, b):\\n    return {n}\\n')"),
    "module_attribute": Captured("m = types.ModuleType('m')\nm.SIZE = 1", "m.SIZE", "m.SIZE = n"),
    "module_of_module": Captured(
        "o = types.ModuleType('o')\no.inner = types.ModuleType('i')\no.inner.SIZE = 1",
        "o.inner.SIZE",
        "o.inner.SIZE = n",
    ),
    "module_replaced": Captured(
        "q = types.ModuleType('q')\nq.inner = types.ModuleType('i')\nq.inner.SIZE = 1",
        "q.inner.SIZE",
        "q.inner = types.ModuleType('i')\nq.inner.SIZE = n",
    ),
    "module_function": Captured(
        "g = types.ModuleType('g')\ng.f = text_function('def f():\\n    return 1\\n')",
        "g.f()",
        "g.f = text_function('def f():\\n    return ' + repr(n) + '\\n')",
    ),
    "module_getattr": Captured(
        "w = types.ModuleType('w')\nw_size = [1]\nw.__getattr__ = lambda name: {'SIZE': w_size[0]}[name]",
        "w.SIZE",
        "w_size[0] = n",
    ),
    "class_attribute": Captured("class Tiles:\n    BM = 1", "Tiles.BM", "Tiles.BM = n"),
    "inherited_attribute": Captured("class Base:\n    BN = 1\nclass Child(Base): pass", "Child.BN", "Base.BN = n"),
    "hidden_attribute": Captured("class Base2:\n    BN = 1\nclass Child2(Base2): pass", "Child2.BN", "Child2.BN = n"),
    "metaclass_property": Captured(
        "class Meta(type):\n    value = 1\n    @property\n    def SIZE(cls): return Meta.value\n"
        "class Sized(metaclass=Meta): pass",
        "Sized.SIZE",
        "Meta.value = n",
    ),
    "method_of_a_number": Captured(
        "class Gain(float):\n    def plus(self, x): return x + 1\nGAIN = Gain(2.0)",
        "GAIN.plus(1)",
        "Gain.plus = text_function(f'def plus(self, x):\\n    return x + {n}\\n')",
    ),
    "operator_of_a_number": Captured(
        "class Loud(float):\n    def __mul__(self, x): return 1\nLOUD = Loud(2.0)",
        "(LOUD * 3)",
        f"Loud.__mul__.__code__ = {_code(parameters='self, x')}",
    ),
    "operator_of_a_number_that_python_computes": Captured(
        "class Soft(float):\n    def __mul__(self, x): return 1\n"
        "SOFTS = (Soft(2.0),)\ndef softer(): return SOFTS[0] * 3",
        "softer()",
        "Soft.__mul__ = text_function(f'def times(self, x):\\n    return {n}\\n')",
    ),
    "operator_of_an_enumeration": Captured(
        "import enum\nclass Level(enum.IntEnum):\n    LOW = 2\n    def __mul__(self, x): return 1",
        "(Level.LOW * 3)",
        "Level.__mul__ = text_function(f'def times(self, x):\\n    return {n}\\n')",
    ),
    "number_that_prints_alike": Captured(
        "class Metres(float):\n    def __repr__(self): return 'metres'\nLENGTH = Metres(1.0)",
        "LENGTH",
        "LENGTH = Metres(n)",
    ),
    "number_that_equals_all": Captured(
        "class Any_int(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\nANY = Any_int(1)",
        "(ANY + 0)",
        "ANY = Any_int(n)",
    ),
    "enum_value": Captured(
        "import enum\nclass Kind(enum.Enum):\n    ONE = 1", "Kind.ONE.value", "Kind.ONE._value_ = n"
    ),
    "enum_anew": Captured(
        "import enum\nclass Sort(enum.IntEnum):\n    ONE = 1",
        "Sort.ONE.value",
        "class Sort(enum.IntEnum):\n    ONE = n",
    ),
    "redefined_helper": Captured(
        "def again(): return 1", "again()", "again = text_function(f'def again():\\n    return {n}\\n')"
    ),
    "code_in_place": Captured("def placed(): return 1", "placed()", f"placed.__code__ = {_code()}"),
    "code_of_inner": Captured(
        "def deep(): return 1\ndef shallow(): return deep()", "shallow()", f"deep.__code__ = {_code()}"
    ),
    "defaults": Captured("def padded(a=1): return a", "padded()", "padded.__defaults__ = (n,)"),
    "keyword_defaults": Captured("def keyed(*, a=1): return a", "keyed()", "keyed.__kwdefaults__['a'] = n"),
    "keyword_defaults_anew": Captured("def keyed2(*, a=1): return a", "keyed2()", "keyed2.__kwdefaults__ = {'a': n}"),
    "default_of_a_constant": Captured(
        _record("d") + "def sized(a=CONFIG_d): return a.size",
        "sized()",
        "sized.__defaults__ = (Config_d(n),)",
    ),
    "cell": Captured(
        "def outer():\n    held = 1\n    def inner(): return held\n    return inner\ninner = outer()",
        "inner()",
        "inner.__closure__[0].cell_contents = n",
    ),
    "partial_keywords": Captured(
        "import functools\npart = functools.partial(lambda a, b=0: a + b, 1, b=2)", "part()", "part.keywords['b'] = n"
    ),
    "partial_more_keywords": Captured(
        "import functools\npart2 = functools.partial(lambda a, b=0: a + b, 1)", "part2()", "part2.keywords['b'] = n"
    ),
    "wrapped": Captured(
        "import functools\ndef deco(function):\n    @functools.wraps(function)\n    def wrapper(*args, **kwargs):\n"
        "        return 2 * function(*args, **kwargs)\n    return wrapper\n@deco\ndef inside(a=1): return a",
        "inside()",
        "inside.__wrapped__.__defaults__ = (n,)",
    ),
    "instance_anew": Captured(_record("a"), "CONFIG_a.size", "CONFIG_a = Config_a(n)"),
    "instance_in_place": Captured(_record("b"), "CONFIG_b.size", "object.__setattr__(CONFIG_b, 'size', n)"),
    "instance_hidden_field": Captured(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Hidden:\n"
        "    size: int = dataclasses.field(repr=False, default=1)\nHIDDEN = Hidden()",
        "HIDDEN.size",
        "HIDDEN = Hidden(n)",
    ),
    "class_of_an_instance": Captured(
        _record("c") + "\nclass Other_c(Config_c):\n    pass",
        "CONFIG_c.twice",
        "twice = property(text_function(f'def f(self):\\n    return {n}\\n'))\n"
        "Other_c = type('Other_c', (Config_c,), {'twice': twice})\n"
        "object.__setattr__(CONFIG_c, '__class__', Other_c)",
    ),
    "property": Captured(
        _record("p"), "CONFIG_p.twice", "Config_p.twice = property(text_function(f'def f(self):\\n    return {n}\\n'))"
    ),
    "property_code": Captured(
        _record("pc"), "CONFIG_pc.twice", f"Config_pc.twice.fget.__code__ = {_code(parameters='self')}"
    ),
    "method": Captured(
        _record("me"), "CONFIG_me.plus(1)", "Config_me.plus = text_function(f'def f(self, o):\\n    return {n}\\n')"
    ),
    "class_method": Captured(
        _record("cm"),
        "Config_cm.of_class()",
        "Config_cm.of_class = classmethod(text_function(f'def f(cls):\\n    return {n}\\n'))",
    ),
    "stored_method": Captured(
        _record("st") + "st = types.ModuleType('st')\nst.add = CONFIG_st.plus",
        "st.add(1)",
        "st.add = Config_st(n).plus",
    ),
    "stored_method_of_a_class": Captured(
        _record("sk") + "class Stored:\n    add = CONFIG_sk.plus",
        "Stored.add(1)",
        "Stored.add = Config_sk(n).plus",
    ),
    "stored_method_of_a_named_tuple": Captured(
        "import collections\nclass Sum(collections.namedtuple('Sum', 'a')):\n    def plus(self, b): return self.a + b\n"
        "sn = types.ModuleType('sn')\nsn.add = Sum(1).plus",
        "sn.add(1)",
        "sn.add = Sum(n).plus",
    ),
    "stored_method_of_a_constant": Captured(
        "def summed(a, b): return a + b\nsc = types.ModuleType('sc')\nsc.add = types.MethodType(summed, 1)",
        "sc.add(1)",
        "sc.add = types.MethodType(summed, n)",
    ),
    "class_method_of_another_class": Captured(
        "class Own:\n    SIZE = 1\n    @classmethod\n    def size(cls): return cls.SIZE\nOwn.held = Own.size",
        "Own.held()",
        "Own.held = type('Other', (Own,), {'SIZE': n}).size",
    ),
    "stored_partial": Captured(
        "import functools\nsp = types.ModuleType('sp')\ndef added_p(a, b): return a + b\n"
        "sp.add = functools.partial(added_p, 1)",
        "sp.add(1)",
        "sp.add = functools.partial(added_p, n)",
    ),
    "stored_callable": Captured(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Adds:\n    a: int\n"
        "    def __call__(self, b): return self.a + b\nso = types.ModuleType('so')\nso.add = Adds(1)",
        "so.add(1)",
        "so.add = Adds(n)",
    ),
    "stored_static_method": Captured(
        "import functools\nclass Statics:\n    add = staticmethod(functools.partial(lambda a, b: a + b, 1))",
        "Statics.add(1)",
        "Statics.add = staticmethod(functools.partial(Statics.add.func, n))",
    ),
    "dict_of_stored_methods": Captured(
        _record("sd") + "METHODS = {'add': CONFIG_sd.plus}", "METHODS['add'](1)", "METHODS['add'] = Config_sd(n).plus"
    ),
    "cell_of_a_stored_method": Captured(
        _record("se") + "def around_method():\n    held = CONFIG_se.plus\n    def inner(): return held(1)\n"
        "    return inner\nwith_method = around_method()",
        "with_method()",
        "with_method.__closure__[0].cell_contents = Config_se(n).plus",
    ),
    "static_method": Captured(
        _record("sm"),
        "CONFIG_sm.of_none()",
        "Config_sm.of_none = staticmethod(text_function(f'def f():\\n    return {n}\\n'))",
    ),
    "dataclass_default": Captured(
        _record("dd"), "Config_dd().size", _record("dd").replace("= 1", "= n").replace("return 1", "return 0")
    ),
    "dataclass_fields_in_place": Captured(
        _record("df"),
        "Config_df().size",
        "New_df = dataclasses.make_dataclass('New_df', [('size', int, n)], frozen=True)\n"
        "Config_df.__init__ = New_df.__init__\nConfig_df.__dataclass_fields__ = New_df.__dataclass_fields__",
    ),
    "default_factory": Captured(
        "import dataclasses\nmade = [1]\n@dataclasses.dataclass(frozen=True)\nclass Made:\n"
        "    size: int = dataclasses.field(default_factory=lambda: made[0])",
        "Made().size",
        "made[0] = n",
    ),
    "named_tuple_defaults": Captured(
        "import collections\nPair = collections.namedtuple('Pair', 'a b', defaults=(1,))",
        "Pair(1).b",
        "Pair.__new__.__defaults__ = (n,)",
    ),
    "named_tuple_attribute": Captured(
        "import collections\nclass Triple(collections.namedtuple('T', 'a')):\n    EXTRA = 1\nTRIPLE = Triple(1)",
        "TRIPLE.EXTRA",
        "Triple.EXTRA = n",
    ),
    "dict_item": Captured("WEIGHTS = {'a': 1, 'b': 2}", "WEIGHTS['b']", "WEIGHTS['b'] = n"),
    "dict_new_item": Captured(
        "LONGER = {'a': 1}\ndef total():\n    r = 0\n    for k in LONGER:\n        r = r + LONGER[k]\n    return r",
        "total()",
        "LONGER[str(n)] = n",
    ),
    "dict_order": Captured(_ordered("ORDER", "{'a': 1, 'b': 2, 'c': 3}"), "read_ORDER()", _reordered("ORDER")),
    "dict_order_of_numbers": Captured(
        _ordered("PLACES", "{1: 1, 2.5: 2, True + 2: 3}"), "read_PLACES()", _reordered("PLACES")
    ),
    "dict_order_of_a_dict_within": Captured(
        _ordered("INNER", "{'a': 1, 'b': 2, 'c': 3}") + "OUTER = {'x': INNER}\n",
        "read_INNER(OUTER['x'])",
        _reordered("INNER"),
    ),
    "dict_order_of_a_closure": Captured(
        "def around():\n    own = {'a': 1, 'b': 2, 'c': 3}\n    def read():\n        r = 0\n        for k in own:\n"
        "            r = 10 * r + own[k]\n        return r\n    return own, read\nOWN, read_own = around()",
        "read_own()",
        _reordered("OWN"),
    ),
    "dict_type_of_a_key": Captured(
        "KINDS = {1: 5}\ndef kinds():\n    r = 0\n    for k in KINDS:\n"
        "        r = r + (10 if isinstance(k, bool) else 20)\n    return r",
        "kinds()",
        "k = KINDS.popitem()[0]\nKINDS[True if type(k) is int else 1] = 5",
    ),
    "dict_strange_keys": Captured(
        "import enum\nclass Kind(enum.IntEnum):\n    ONE = 1\nclass Word(enum.StrEnum):\n    DOLLAR = '$o0'\n"
        "STRANGE = {'$': 1, Word.DOLLAR: 2, Kind.ONE: 3, float('inf'): 4, -float('inf'): 5, \"'\\n\": 6}\n"
        "def strange():\n    r = 0\n    for k in STRANGE:\n        r = 10 * r + STRANGE[k]\n    return r",
        "strange()",
        "STRANGE[list(STRANGE)[n % 6]] += 1",
    ),
    "dict_of_a_partial": Captured(
        "import functools\ndef ordered(**named):\n    r = 0\n    for k in named:\n        r = 10 * r + named[k]\n"
        "    return r\nPART = functools.partial(ordered, a=1, b=2, c=3)\nKEYWORDS = PART.keywords",
        "PART()",
        _reordered("KEYWORDS"),
    ),
    "item_of_a_tuple_of_classes": Captured("class Row:\n    W = 1\nROWS = (Row,)", "ROWS[0].W", "Row.W = n"),
    "pattern": Captured(
        "class Case:\n    ONE = 1\ndef matched(x):\n    match x:\n        case Case.ONE:\n            return 10\n"
        "        case _:\n            return 20",
        "matched(1)",
        "Case.ONE = 1 if Case.ONE != 1 else 2",
    ),
}
"""By name. `types` and `text_function` are known in the definitions."""
