"""Python files worked out without being run: the evaluator, and what each framework's scripts come to."""

import pytest
from test_launch_tools import assert_has, job

from gpuscale.errors import InputError
from gpuscale.launch.check import check
from gpuscale.launch.megatron_recipes import library, named_recipe
from gpuscale.launch.python_run import Program
from gpuscale.launch.python_state import MAX_STEPS
from gpuscale.launch.python_values import Record, Unknown
from gpuscale.launch.read import read_launch
from gpuscale.presets.models import load_model
from gpuscale.request import JobOptions, Layout, declared


def evaluated(text, given=None, modules=None):
    """Return the names of a module after it was gone through."""

    def find(name, level, importer):
        del level, importer
        found = (modules or {}).get(name)
        return None if found is None else (f"{name}.py", found)

    return Program(find, given or {}).module("own.py", text).names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 2 * 3 + 2 ** 4 // 3 - 7 % 4", 8),
        ("x = [i * 2 for i in range(4) if i != 2]", [0, 2, 6]),
        ("x = {k: v for k, v in zip(['a', 'b'], [1, 2])}", {"a": 1, "b": 2}),
        ("x = f'{2 + 3}-{0.5:.2f}-{\"a\"}'", "5-0.50-a"),
        ("x = 'fp8' if 3 > 2 and not False else 'bf16'", "fp8"),
        ("x = 1 if 1 < 2 < 3 else 0", 1),
        ("a, (b, *_) = 1, [2, 3]\nx = a + b", 3),
        ("def f(a, b=2, *, c=3, **d):\n    return [a, b, c, d]\nx = f(1, c=5, e=6)", [1, 2, 5, {"e": 6}]),
        ("def f(n):\n    return 1 if n == 0 else n * f(n - 1)\nx = f(5)", 120),
        ("from functools import partial\ndef f(a, b):\n    return a - b\nx = partial(f, b=1)(5)", 4),
        ("x = 0\nfor i in range(10):\n    if i == 4:\n        break\n    x += i", 6),
        ("x = 1\nwhile x < 100:\n    x *= 3", 243),
        ("d = {'a': 1}\nd.update(b=2)\nd['c'] = d.get('z', 3)\nx = list(d.values())", [1, 2, 3]),
        ("match 70:\n    case 8 | 7:\n        x = 1\n    case 70:\n        x = 8\n    case _:\n        x = 0", 8),
        ("class A:\n    n = 3\n    @classmethod\n    def of(cls, m):\n        return cls.n * m\nx = A.of(4)", 12),
        ("import math\nx = math.ceil(7 / 2) + max(1, 5) + int('3')", 12),
        ("x = (lambda a: a + 1)(2)", 3),
        ("x = 'Llama-3'.lower().replace('-', '_').split('_')", ["llama", "3"]),
        ("x = [1, 2, 3][-1] + [4, 5][0:1][0]", 7),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None\nx = 1", 1),
        ("if (n := 4) > 3:\n    x = n", 4),
        ("import os\nx = int(os.environ.get('TP', 8))", 8),
        ("n = 1\ndef f():\n    global n\n    n = 5\nf()\nx = n", 5),
        ("def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 2\n    g()\n    return n\nx = f()", 2),
        ("try:\n    raise ValueError\nexcept ValueError:\n    x = 2", 2),
        ("try:\n    y = 1\nexcept ValueError:\n    y = 2\nelse:\n    y = 3\nfinally:\n    x = y + 1", 4),
        ("x = [3, 1, 2]\nx.sort()\nx.insert(0, 9)\nx.pop()\nx.remove(1)\nx.extend((4, 5))", [9, 2, 4, 5]),
        ("a = [1, 2, 3]\nx = a\na += [4]\ndel a[0]\na[0:1] = [7, 8]", [7, 8, 3, 4]),
        ("x = a = (1, 2)\na += (3,)", [1, 2]),
        ("x = a = tuple([1, 2])\na += (3,)", [1, 2]),
        ("x = {'a': 1, 'b': 2}\ndel x['a']", {"b": 2}),
        ("x = sorted([3, 1, 2], reverse=True)", [3, 2, 1]),
        ("*a, b = [1, 2, 3]\nx = [a, b]", [[1, 2], 3]),
        ("x = f'{\"a\"!r}' + '%s-%d' % ('b', 3) + '{}/{c}'.format(1, c=2)", "'a'b-31/2"),
        ("x = '7b'.endswith(('7b', '8b')) and ~5 & 0xF | 1 ^ 3", 10),
        (
            "def by(n):\n    def d(f):\n        return lambda a: f(a) * n\n    return d\n@by(5)\n"
            "def f(a):\n    return a\nx = f(3)",
            15,
        ),
        ("known = {}\ndef d(f):\n    known['f'] = f\n    return f\n@d\ndef f():\n    return 7\nx = known['f']()", 7),
        ("import contextlib\n@contextlib.contextmanager\ndef f():\n    yield 3\nwith f() as x:\n    pass", 3),
        (
            "class A:\n    def __enter__(self):\n        return 5\n    def __call__(self, a):\n        return a + 1\n"
            "with A() as y:\n    x = y + A()(2)",
            8,
        ),
        (
            "match {'a': [1, 2]}:\n    case {'b': _}:\n        x = 0\n"
            "    case {'a': [1, int() as n]} if n > 1:\n        x = n",
            2,
        ),
        ("import os\nos.environ['TP'] = '4'\nos.environ.setdefault('TP', '8')\nx = int(os.environ['TP'])", 4),
        (
            "from dataclasses import asdict, dataclass\n@dataclass\nclass A:\n    a: int = 1\n"
            "x = {**asdict(A(3)), **vars(A(4))}",
            {"a": 4},
        ),
        ("class A:\n    def __init__(self, **more):\n        self.__dict__.update(more)\nx = A(a=2).a", 2),
        (
            "from types import SimpleNamespace as N\nc = N(a=1)\nx = [c.a, getattr(c, 'b', 2), 'b' in vars(c)]",
            [1, 2, False],
        ),
        (
            "from easydict import EasyDict\nc = EasyDict({'a': {'b': 1}})\nc.a.b += 1\n"
            "x = c['a'].get('b') + c.a.get('c', 3)",
            5,
        ),
        ("x = list(filter(lambda a: a > 1, [1, 2])) + [next((i for i in [4, 5] if i > 4), None)]", [2, 5]),
        ("from pathlib import Path\nx = str(Path('a') / 'b' / 'c.json') + Path('d/e.py').stem", "a/b/c.jsone"),
        # errors go to the first handler that takes them
        ("try:\n    raise ValueError('a')\nexcept (TypeError, KeyError):\n    x = 1\n"
         "except Exception:\n    x = 2", 2),
        ("def f(v):\n    if v < 0:\n        raise ValueError\n    return v\ntry:\n    x = f(-1)\n"
         "except ValueError:\n    x = 8", 8),
        ("class E(ValueError):\n    pass\ntry:\n    raise E()\nexcept KeyError:\n    x = 1\n"
         "except ValueError:\n    x = 2", 2),
        ("try:\n    x = int('a')\nexcept TypeError:\n    x = 1\nexcept ValueError:\n    x = 2", 2),
        ("try:\n    x = {'a': 1}['b']\nexcept LookupError:\n    x = 4", 4),
        ("x = 0\ntry:\n    try:\n        raise KeyError\n    except ValueError:\n        x = 1\n"
         "    finally:\n        x += 10\nexcept KeyError:\n    x += 100", 110),
        ("n = 0\nwhile True:\n    try:\n        n += 1\n        if n < 3:\n"
         "            raise ValueError\n        break\n    except ValueError:\n        continue\n"
         "x = n", 3),
        ("from contextlib import suppress\nx = 1\nwith suppress(KeyError):\n    x = {}['a']", 1),
        ("try:\n    try:\n        raise ValueError\n    except ValueError as e:\n        raise KeyError from e\n"
         "except KeyError:\n    x = 3", 3),
        ("class T:\n    def __init__(self): self.d = {}\n    def __setitem__(self, k, v): self.d[k] = v * 2\n"
         "t = T()\nt['a'] = 2\nx = t.d", {"a": 4}),
        *((f"from dataclasses import dataclass\nfrom omegaconf import OmegaConf\n@dataclass\nclass A:\n    a: int = 3\n"
           f"x = OmegaConf.{made}.a", expected)
          for made, expected in (("structured(A)", 3), ("structured(A(4))", 4), ("create(A(5))", 5))),
        # sets
        ("s = {1, 1, 2}\ns.add(2)\ns.discard(1)\ns |= {5}\n"
         "x = [len(s), sum(s), {1, 2} == {2, 1}, len({v % 2 for v in range(8)})]", [2, 7, True, 2]),
        ("x = [sorted({3, 1} - {1}), len({1, 2} & {2}), {1}.issubset({1, 2}), isinstance({1}, list)]",
         [[3], 1, True, False]),
        # classes
        ("class A:\n    def __init__(self, n):\n        self.n = n\n    @property\n"
         "    def n(self):\n        return self._n\n    @n.setter\n    def n(self, v):\n"
         "        self._n = v * 2\na = A(3)\nb = a.n\na.n = 4\nx = [b, a.n]", [6, 8]),
        ("class A:\n    def f(self): return 'A'\nclass B(A):\n"
         "    def f(self): return 'B' + super().f()\nclass C(A):\n"
         "    def f(self): return 'C' + super().f()\nclass D(B, C):\n"
         "    def f(self): return 'D' + super().f()\nx = D().f()", "DBCA"),
        ("tp = 8\nclass A:\n    tp = 1\n    def f(self): return tp\nx = A().f()", 8),
        ("class A:\n    def __bool__(self): return False\nx = 1 if A() else 2", 2),
        ("class D:\n    def __init__(self, f): self.f = f\n"
         "    def __call__(self, a): return self.f(a) * 10\n@D\ndef f(a): return a\nx = f(2)", 20),
        ("from enum import Enum, auto\nclass K(Enum):\n    A = 'full'\n    B = auto()\n"
         "x = [K.A.name, K.A.value, K('full') is K.A, K.A == 'full', K['A'].value, [m.name for m in K], K.B.value]",
         ["A", "full", True, False, "full", ["A", "B"], 1]),
        ("from collections import namedtuple\nP = namedtuple('P', 'tp pp', defaults=(3,))\n"
         "a, b = P(2)\np = P(4)._replace(pp=5)\nx = [a, b, p.pp, p[0], p._asdict()]", [2, 3, 5, 4, {"tp": 4, "pp": 5}]),
        ("from dataclasses import dataclass, field\n@dataclass\nclass A:\n"
         "    m: int = field(init=False, default=3)\n    n: int = 4\nx = A(7).n", 7),
        # functions
        ("n = 2\ndef f(n=n, l=[]):\n    l.append(n)\n    return l\nn = 5\nf()\nx = f()", [2, 2]),
        ("fs = [lambda: i for i in range(3)]\nx = fs[0]()", 2),
        ("def f(n):\n    for i in range(n):\n        yield i * 2\n    yield from [9]\ng = f(3)\n"
         "x = [next(g), next(g), list(g)]", [0, 2, [4, 9]]),
        ("x = [sorted(['bb', 'a'], key=len), max([3, -5], key=abs), "
         "max({'a': 1, 'b': 5}.items(), key=lambda kv: kv[1])[0]]",
         [["a", "bb"], -5, "b"]),
        ("d = {'a': 1, 'b': 5}\nl = [3, 1]\nl.sort(key=lambda v: -v)\n"
         "x = [max(d, key=d.get), l, list(map(lambda a, b: a + b, [1], [2]))]", ["b", [3, 1], [3]]),
        ("from functools import reduce\nfrom itertools import product\n"
         "x = [reduce(lambda a, b: a * b, [2, 3], 10), [a * b for a, b in product([1, 2], [3])]]", [60, [3, 6]]),
        # what is changed in place, and what is not
        ("a = b = [1]\na *= 2\nc = d = {'k': 1}\nc |= {'j': 2}\nx = [b, len(d)]", [[1, 1], 2]),
        ("import copy\nd = {'a': [1]}\ne, f = copy.copy(d), copy.deepcopy(d)\ne['a'].append(2)\n"
         "x = [d['a'], f['a']]", [[1, 2], [1]]),
        ("from collections import defaultdict\nd = defaultdict(list)\nd['a'].append(1)\n"
         "x = [len(d['a']), len(d['b']), len(d)]", [1, 0, 2]),
        ("d = {'a': 1, 'b': 2}\nk, v = d.popitem()\nd.clear()\nx = [k, v, len(d)]", ["b", 2, 0]),
        ("x = [[] == (), isinstance((1,), list), f'{(1, 2)}', str((1,)), type(3) is int]",
         [False, False, "(1, 2)", "(1,)", True]),
        ("match (1, 2):\n    case (1, y) | (y, 1):\n        a = y\nmatch [1, 2, 3]:\n"
         "    case [_, *b]:\n        pass\nx = [a, b]", [2, [2, 3]]),
        ("x = 0\nwhile x < 5:\n    x += 1\nelse:\n    x += 100", 105),
        ("import argparse\np = argparse.ArgumentParser()\n"
         "p.add_argument('--tp', type=int, default=4)\nx = p.parse_args(['--tp', '8']).tp", 8),
    ],
)  # fmt: skip
def test_expressions_and_statements(text, expected):
    assert evaluated(text)["x"] == expected


ABSENT = (
    "try:\n    import fast_attn\n    HAS = True\nexcept ImportError:\n    HAS = False\nx = 'fast' if HAS else 'eager'"
)


def test_what_extends_a_list_without_being_known_stays_unknown_by_its_name():
    held = evaluated("import sys\nx = [1]\nx.extend(sys.argv[1])\nx.extend(3)")["x"]
    assert (held[0], held[1].name, isinstance(held[2], Unknown)) == (1, "sys.argv.1", True)


def test_a_package_of_a_try_is_taken_as_installed_with_a_word_where_something_hangs_on_it():
    program = Program(lambda *_: None, {})
    assert program.module("own.py", ABSENT).names["x"] == "fast"
    assert [one.name for one in program.chosen.values()] == ["fast_attn"]
    unused = Program(lambda *_: None, {})
    unused.module("own.py", ABSENT.replace("if HAS ", "if True "))
    assert not unused.chosen
    assert evaluated(ABSENT, {"fast_attn": "false"})["x"] == "eager"


@pytest.mark.parametrize(
    "text",
    [
        "x = make()[0]",
        "x = {}.pop(make())",
        "x = {'a': 1, **make()}.get('b', 3)",
        "x = {'a': 1}.unheard_of()",
        "x = type(make()) is int",
        "x = {'a': 1}.pop('b')",
        "def f():\n    while True:\n        yield 1\nx = list(f())",
        "def f():\n    for a in make():\n        yield a\nx = list(f())",
        "l = []\nfor a in make():\n    l.append(1)\nx = len(l)",
        "l = []\nif make():\n    l.append(1)\nx = len(l)",
        "l = []\nwhile make():\n    l.append(1)\nx = 1 if l else 2",
        "try:\n    if make():\n        raise ValueError\n    x = 1\nexcept ValueError:\n    x = 2",
        "def f():\n    if make():\n        raise ValueError\n"
        "x = 1\ntry:\n    f()\n    x = 2\nexcept ValueError:\n    pass",
        "x = 0\nfor i in range(3):\n    if make():\n        break\n    x += 1",
        "x = 0\nfor i in range(3):\n    if make():\n        continue\n    x += 1",
        "x = 0\nwhile x < 3:\n    x += 1\n    if make():\n        break",
        "n = 0\nwhile True:\n    n += 1\n    if make() or n > 4:\n        break\nx = n",
        "s = {1}\nif make():\n    s.add(2)\nx = len(s)",
        "x = len({make(), 'a'})",
        "d = {}\nif make():\n    d['a'] = 1\nx = 'a' in d",
        "d = {'a': 1}\nif make():\n    del d['a']\nx = len(d)",
        "d = {'a': 1}\nd[make()[0]] = 2\nx = d['a']",
        "class A: pass\na = A()\nif make():\n    a.n = 2\nx = hasattr(a, 'n')",
        "def f():\n    if make():\n        return 1\nx = f() or 3",
        "if make():\n    def f(): return 1\nelse:\n    def f(): return 2\nx = f()",
        "def f():\n    yield 1\n    if make():\n        return\n    yield 2\nx = len(list(f()))",
        "i = iter([1, 2])\nif make():\n    next(i)\nx = next(i)",
        "x = 1\nmake() and (x := 3)",
        "x = len([*make()[1], 2])",
        "import os\nif make():\n    os.environ['A'] = '2'\nx = os.environ.get('A', '1')",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', default=1)\n"
        "if make():\n    p.set_defaults(n=2)\nx = p.parse_args([]).n",
    ],
)
def test_what_hangs_on_what_is_not_here_is_not_made_up(text):
    assert isinstance(evaluated(f"from elsewhere import make\n{text}")["x"], Unknown)


def test_a_sum_that_is_not_known_is_given_by_its_variable():
    text = "import lib\nmodel = lib.Model()\ntotal = sum(p.numel() for p in model.parameters())\nx = total // 2"
    found = evaluated(text)["x"]
    assert isinstance(found, Unknown)
    assert found.name == "total"
    assert evaluated(text, {"total": "8"})["x"] == 4


def test_dataclasses_have_their_defaults_and_overrides():
    text = """
from dataclasses import dataclass, field, replace
@dataclass
class Base:
    dim: int = 64
    parts: list = field(default_factory=lambda: [1])
@dataclass
class Model(Base):
    layers: int = 2
    def __post_init__(self):
        self.ffn = 4 * self.dim
    @property
    def twice(self):
        return 2 * self.layers
one, two = Model(128), replace(Model(layers=3), dim=8)
one.parts.append(5)
x = [one.dim, one.ffn, one.parts, one.twice, two.dim, two.layers, two.parts]
"""
    assert evaluated(text)["x"] == [128, 512, [1, 5], 4, 8, 3, [1]]


def test_calls_of_other_packages_are_records_that_take_assignments():
    found = evaluated("import lib\ncfg = lib.Config(a=1)\ncfg.model.tp = 4\ncfg.model.tp += 4\nname = cfg.model.pp")
    assert isinstance(found["cfg"], Record)
    assert found["cfg"].name == "lib.Config"
    assert found["cfg"].parts["model"].parts["tp"] == 8
    assert isinstance(found["name"], Unknown)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = 1 if flag else 1", 1),
        ("x = 1\nif flag:\n    x = 1", 1),
        ("x = 1\nif flag:\n    x = 2", "flag"),
        ("if flag:\n    x = 2\nelse:\n    x = 2", 2),
        ("if flag:\n    x = 2\nelse:\n    raise ValueError", 2),
        ("def f():\n    if flag:\n        return 3\n    return 4\nx = f()", "flag"),
        ("cfg = Config()\ndef f(c):\n    c.a = 2\nif flag:\n    f(cfg)\nx = cfg.a", "flag"),
        ("x = 2 * flag + 1", "flag"),
        ("x = flag and 3", "flag"),
        ("x = flag or 3", 3),
        ("a = [1]\nif flag:\n    a.append(2)\nx = a[-1]", "flag"),
        ("a = [1, 2]\nif flag:\n    a.pop()\nx = a[-1]", "flag"),
        ("a = {'b': 1}\nif flag:\n    a.pop('b')\n    a.setdefault('c', 2)\nx = a.get('b')", "flag"),
        ("a = {'b': 1}\nif flag:\n    del a['b']\nx = a['b']", "flag"),
        ("class A:\n    n = 1\nif flag:\n    A.n = 2\nx = A.n", "flag"),
        ("x = {'a': 1}['b']", "{'a': 1}['b']"),
        ("x = flag['a'].b", "flag.a.b"),
    ],
)
def test_what_hangs_on_the_unknown_is_unknown_and_nothing_else(body, expected):
    """`flag` is an argument that nobody gives; `flag or 3` has its usual value."""
    text = "def outer(flag):\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "    return x\ny = outer"
    program = Program(lambda *_: None, {})
    scope = program.module("own.py", text)
    found = program.follow(scope.names["outer"], (), {}, scope.place(scope.names["outer"].node))
    assert (found.name if isinstance(found, Unknown) else found) == expected


def test_what_is_unknown_may_be_given():
    text = "import os\ndef f(flag):\n    return 2 if flag else 3\nx = f(os.environ['FLAG'])"
    assert isinstance(evaluated(text)["x"], Unknown)
    assert evaluated(text, {"FLAG": "true"})["x"] == 2


def test_imports_are_followed_where_the_module_is_here():
    modules = {"sizes": "from more import SEQ\ndef tp(n):\n    return n * SEQ", "more": "SEQ = 4\nfrom sizes import tp"}
    assert evaluated("from sizes import tp as degree, SEQ\nx = degree(2) + SEQ", modules=modules)["x"] == 12


@pytest.mark.parametrize(
    "text",
    [
        "x = 10 ** 10 ** 10",
        "x = [0] * 10 ** 9",
        "x = 'a' * 10 ** 9",
        "x = 1\nwhile True:\n    x += 1",
        "def f():\n    return f()\nx = f()",
        "def f(n):\n    return [f(n + 1), f(n + 1)]\nx = f(0)",
        "x = [[i, j] for i in range(9999) for j in range(9999)]",
        "x = 1 << 10 ** 9",
        "x = f'{1:999999999d}'",
        "a = []\na.append(a)\nx = a",
        "class A(A):\n    pass\nx = A()",
        "x = open('/etc/passwd').read()",
        "x = __import__('os').system('true')",
        "x = ().__class__.__bases__[0].__subclasses__()",
    ],
)
def test_what_has_no_end_or_does_harm_does_neither(text):
    program = Program(lambda *_: None, {})
    found = program.module("own.py", text).names.get("x")
    assert program.steps <= 2 * MAX_STEPS
    assert not isinstance(found, str | list) or len(found) <= 10_000
    assert isinstance(found, Unknown | Record | list | int | None) or found == "1"


# --- frameworks


def read(tmp_path, text, given=None, variables=None, name="own.py"):
    (tmp_path / name).write_text(text)
    return read_launch([tmp_path / name], variables or {}, given or {})


def stated(job, *names):
    return {name: {**job.options, **job.layout}.get(name) for name in names}


NEMO = """
import argparse
import nemo_run as run
from nemo.collections import llm

def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--fp8", action="store_true")
    return parser.parse_args()

def configure(nodes=1, gpus=8):
    recipe = llm.llama3_70b.pretrain_recipe(name="mine", num_nodes=nodes, num_gpus_per_node=gpus)
    recipe.trainer.strategy.tensor_model_parallel_size = 8
    recipe.data.global_batch_size = 256
    return recipe

if __name__ == "__main__":
    given = arguments()
    recipe = configure(given.nodes)
    if given.fp8:
        recipe.trainer.plugins = bf16_with_fp8_current_scaling_mixed()
    run.run(recipe, executor=run.LocalExecutor(), name="mine")
"""


def test_a_recipe_of_nemo_has_its_defaults_and_what_is_changed(tmp_path):
    job = read(tmp_path, NEMO)
    assert stated(job, "model", "gpus", "seq", "gbs", "tp", "pp", "vpp", "cp", "sp", "precision", "optimizer") == {
        "model": "llama3-70b", "gpus": 32, "seq": 8192, "gbs": 256, "tp": 8, "pp": 4, "vpp": 5, "cp": 2, "sp": True,
        "precision": "bf16", "optimizer": "adam",
    }  # fmt: skip
    assert any("nodes is not given" in one.meaning for one in job.assumed)


def test_a_command_gives_the_arguments_of_the_script_that_it_runs(tmp_path):
    (tmp_path / "own.py").write_text(NEMO)
    job = read(tmp_path, "torchrun --nnodes 8 --nproc_per_node 8 own.py --nodes 8 --fp8\n", name="run.sh")
    assert stated(job, "gpus", "precision", "tp") == {"gpus": 64, "precision": "fp8-current", "tp": 8}


@pytest.mark.parametrize(
    ("optim", "zero"),
    [
        ("nl.MegatronOptimizerModule(config=OptimizerConfig(optimizer='adam', use_distributed_optimizer=True))", None),
        ("nl.MegatronOptimizerModule(config=OptimizerConfig(optimizer='adam'))", 0),
        ("distributed_fused_adam_with_cosine_annealing(max_lr=3e-4)", None), ("None", None),
    ],
)  # fmt: skip
def test_a_call_of_nemo_states_all_itself(tmp_path, optim, zero):
    text = """
from nemo import lightning as nl
from nemo.collections import llm
seq_length = 4096
config = llm.Qwen25Config7B(seq_length=seq_length)
strategy = nl.MegatronStrategy(tensor_model_parallel_size=2, pipeline_model_parallel_size=2, sequence_parallel=True)
plugin = nl.MegatronMixedPrecision(precision="bf16-mixed")
trainer = nl.Trainer(devices=8, num_nodes=2, strategy=strategy, plugins=[plugin])
data = llm.MockDataModule(seq_length=seq_length, global_batch_size=64, micro_batch_size=2)
llm.train(model=llm.Qwen2Model(config), data=data, trainer=trainer, optim=OPTIM)
"""
    job = read(tmp_path, text.replace("OPTIM", optim), {"model": "qwen2.5-7b"})
    assert stated(job, "gpus", "seq", "gbs", "micro_batch_size", "tp", "pp", "sp", "precision", "zero") == {
        "gpus": 16, "seq": 4096, "gbs": 64, "micro_batch_size": 2, "tp": 2, "pp": 2, "sp": True, "precision": "bf16",
        "zero": zero,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "precision", "expected"),
    [
        ("nl.FSDP2Strategy(data_parallel_size=4, tensor_parallel_size=2)", "'bf16-mixed'",
         {"zero": 3, "tp": 2, "cp": 1, "precision": "bf16"}),
        ("nl.FSDP2Strategy(tensor_parallel_size=1, context_parallel_size=2)", "None",
         {"zero": 3, "tp": 1, "cp": 2, "precision": "bf16"}),
        ("made(True)", "'16-mixed'", {"zero": 3, "tp": 1, "cp": 1, "precision": "fp16"}),
        ("made(False)", "'bf16-mixed'", {"zero": 0, "tp": None, "cp": None, "precision": "bf16"}),
        ("'ddp'", "'32'", {"zero": 0, "precision": "fp32"}),
    ],
)  # fmt: skip
def test_a_call_of_nemo_shards_as_its_strategy_does(tmp_path, strategy, precision, expected):
    text = f"""
from nemo import lightning as nl
from nemo.collections import llm
def made(sharded):
    return nl.FSDP2Strategy(data_parallel_size=8, tensor_parallel_size=1) if sharded else 'ddp'
strategy = {strategy}
trainer = nl.Trainer(devices=8, num_nodes=1, strategy=strategy, precision={precision})
data = llm.MockDataModule(seq_length=2048, global_batch_size=64, micro_batch_size=2)
llm.finetune(model=llm.LlamaModel(llm.Llama3Config8B()), data=data, trainer=trainer)
"""
    job = read(tmp_path, text)
    assert stated(job, *expected) == expected
    for unknown in ("nl.OtherStrategy()", "elsewhere()"):
        with pytest.raises(InputError, match=r"trainer\.strategy"):
            read(tmp_path, text.replace(f"strategy = {strategy}", f"strategy = {unknown}"))


def test_parts_of_a_recipe_of_nemo_have_its_defaults(tmp_path):
    text = """
import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.recipes import llama3_8b
data = run.Config(llm.MockDataModule, seq_length=4096, global_batch_size=64, micro_batch_size=2)
trainer = llama3_8b.trainer(tensor_parallelism=2, context_parallelism=1, num_nodes=1, num_gpus_per_node=8)
run.run(run.Partial(llm.pretrain, model=llama3_8b.model(), trainer=trainer, data=data))
"""
    job = read(tmp_path, text)
    assert (job.options["model"], job.options["gpus"], job.options["gbs"]) == ("llama3-8b", 8, 64)
    assert (job.layout["tp"], job.layout["cp"], job.layout["micro_batch_size"]) == (2, 1, 2)
    assert job.options["precision"] == "bf16"


TUNED = "from nemo.collections import llm\nrecipe = llm.{}.finetune_recipe(num_nodes=1, num_gpus_per_node=8{})\n"
OF_8B = {"model": "llama3-8b", "seq": 2048, "gbs": 128}


@pytest.mark.parametrize(
    ("recipe", "more", "expected"),
    [
        ("llama3_8b", "", OF_8B | {"tune": "lora", "lora_rank": 8, "lora_targets": "down,gate,k,o,q,up,v", "zero": 0}),
        ("llama3_8b", ', peft_scheme="dora", packed_sequence=True', {"tune": "lora", "seq": 4096, "gbs": 8}),
        ("llama3_8b", ", peft_scheme=None", OF_8B | {"tune": None, "tp": 2, "sp": False}),
        ("llama3_8b", ', peft_scheme="none", packed_sequence=True', {"seq": 4096, "gbs": 8}),
        ("llama31_70b", ', peft_scheme="lora"', {"tp": 8, "lora_rank": 16, "loss": "standard"}),
        ("qwen3_30b_a3b", "", {"tp": 4, "ep": 4, "sp": True, "lora_rank": 32, "lora_targets": "k,o,q,v"}),
        ("qwen2_7b", ")\nrecipe.trainer.strategy.tensor_model_parallel_size = 2\nprint(", {"tp": 2, "lora_rank": 32}),
    ],
)  # fmt: skip
def test_recipes_of_fine_tuning_of_nemo(recipe, more, expected, tmp_path):
    job = read(tmp_path, TUNED.format(recipe, more))
    assert stated(job, "gpus", *expected) == {"gpus": 8, **expected}


def test_commands_of_fine_tuning_of_nemo_take_recipes_of_it(tmp_path):
    for more, tune in (("", "lora"), (" peft_scheme=none", None)):
        path = tmp_path / "a.sh"
        path.write_text(f"nemo llm finetune --factory llama3_8b{more} trainer.num_nodes=1 trainer.devices=8\n")
        assert stated(read_launch([path]), "tune", *OF_8B) == {"tune": tune, **OF_8B}


@pytest.mark.parametrize(
    ("recipe", "more", "message"),
    [("llama3_8b", ", performance_mode=True", "fine-tuning is not read"), ("t5_3b", "", "its adapters")],
)
def test_recipes_of_fine_tuning_that_are_not_known_are_refused(recipe, more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read(tmp_path, TUNED.format(recipe, more))


def test_recipes_of_fine_tuning_of_bridge_say_the_model_and_ask_for_adapters(tmp_path):
    text = (
        "torchrun --nproc_per_node 8 run_recipe.py --recipe gpt_oss_20b_finetune_config{} train.global_batch_size=8 "
        "train.micro_batch_size=1 model.seq_length=2048\n"
    )
    job = read(tmp_path, text.format(" --peft_scheme none"), name="run.sh")
    assert stated(job, "model", "tune", "gbs") == {"model": "gpt-oss-20b", "tune": None, "gbs": 8}
    with pytest.raises(InputError, match="whether it trains adapters is not said"):
        read(tmp_path, text.format(""), name="run.sh")


def test_a_recipe_without_model_and_nodes_asks_for_both_at_once(tmp_path):
    with pytest.raises(InputError, match=r"model of the recipe .* GPUs") as caught:
        read(tmp_path, "from nemo.collections import llm\nrecipe = llm.mine_9b.pretrain_recipe()\n")
    assert "gpus" in caught.value.hint


BRIDGE = """
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
from megatron.bridge.training.pretrain import pretrain

def main():
    cfg = llama3_70b_pretrain_config()
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.tensor_model_parallel_size = 8
    cfg.train.global_batch_size = 128
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "block"
    cfg.model.recompute_num_layers = 5
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    pretrain(config=cfg, forward_step_func=forward_step)

if __name__ == "__main__":
    main()
"""


def test_a_recipe_of_megatron_bridge_has_its_defaults_and_what_is_changed(tmp_path):
    job = read(tmp_path, BRIDGE, {"gpus": 256})
    assert stated(job, "model", "seq", "gbs", "tp", "pp", "vpp", "cp", "precision", "recompute", "moment_dtype") == {
        "model": "llama3-70b", "seq": 8192, "gbs": 128, "tp": 8, "pp": 4, "vpp": None, "cp": 2,
        "precision": "fp8-current", "recompute": "full:5", "moment_dtype": "bf16",
    }  # fmt: skip
    assert stated(job, "grad_dtype", "overlap", "zero") == {"grad_dtype": "fp32", "overlap": "tp+dp", "zero": None}
    place = next(one for one in job.understood if "tp = 8" in one.meaning)
    assert (place.line, place.text) == (8, "cfg.model.tensor_model_parallel_size = 8")


def test_a_recipe_for_a_number_of_gpus_is_that_of_the_published(tmp_path):
    text = """
from megatron.bridge.perf_recipes.llama import llama3_70b_pretrain_64gpu_h100_bf16_config
def mine():
    cfg = llama3_70b_pretrain_64gpu_h100_bf16_config()
    cfg.train.micro_batch_size = 2
    return cfg
"""
    job = read(tmp_path, text)
    names = ("gpus", "cluster", "gbs", "tp", "pp", "vpp", "cp", "micro_batch_size", "grad_dtype", "framework")
    assert stated(job, *names) == {
        "gpus": 64, "cluster": "dgx-h100-superpod", "gbs": 256, "tp": 4, "pp": 4, "vpp": 5, "cp": 2,
        "micro_batch_size": 2, "grad_dtype": "bf16", "framework": "megatron-bridge-perf",
    }  # fmt: skip


FLAT = """
from bridge_lib import llama3_8b_pretrain_config, _precision, _common

def llama3_8b_pretrain_8gpu_h100_bf16_config():
    cfg = llama3_8b_pretrain_config()
    cfg.mixed_precision = _precision("bf16")
    cfg.model.context_parallel_size = 2
    cfg.train.global_batch_size = 128
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    _common(cfg)
    return cfg

def llama3_8b_pretrain_16gpu_h100_fp8cs_config():
    cfg = llama3_8b_pretrain_8gpu_h100_bf16_config()
    cfg.mixed_precision = _precision("fp8_cs")
    cfg.train.global_batch_size *= 2
    return cfg
"""
LIBRARY = """
from megatron.bridge.training.mixed_precision import bf16_mixed, bf16_with_fp8_current_scaling_mixed
from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
def _precision(kind):
    if kind == "bf16":
        cfg = bf16_mixed()
    elif kind == "fp8_cs":
        cfg = bf16_with_fp8_current_scaling_mixed()
    else:
        raise ValueError(kind)
    cfg.grad_reduce_in_fp32 = False
    return cfg
def _common(cfg):
    cfg.ddp.grad_reduce_in_fp32 = False
    if getattr(cfg.model, "num_moe_experts", None):
        cfg.model.moe_router_force_load_balancing = True
"""


def test_flat_recipes_of_a_file_are_named_one_by_one(tmp_path):
    (tmp_path / "bridge_lib.py").write_text(LIBRARY)
    (tmp_path / "own.py").write_text(FLAT)
    with pytest.raises(InputError, match=r"2 jobs are here: .*own\.py:4 \(llama3_8b_pretrain_8gpu"):
        read_launch([tmp_path / "own.py"], {}, {})
    path = f"{tmp_path / 'own.py'}:llama3_8b_pretrain_16gpu_h100_fp8cs_config"
    job = read_launch([path], {}, {})
    names = ("model", "gpus", "cluster", "gbs", "cp", "precision", "grad_dtype", "overlap", "framework")
    assert stated(job, *names) == {
        "model": "llama3-8b", "gpus": 16, "cluster": "dgx-h100-superpod", "gbs": 256, "cp": 2,
        "precision": "fp8-current", "grad_dtype": "bf16", "overlap": "dp", "framework": "megatron-bridge-perf",
    }  # fmt: skip


def test_a_value_that_matters_and_is_unknown_is_asked_for_by_name(tmp_path):
    text = BRIDGE.replace("size = 8\n", "size = choose(degree)\n").replace("def main():", "def main(degree=DEGREE):")
    text = text.replace("choose(degree)", "degree").replace("DEGREE", "None").replace("main():\n", "main():\n")
    text = text.replace("def main(degree=None):", "def main(degree):")
    text = text.replace('if __name__ == "__main__":\n    main()\n', "")
    with pytest.raises(InputError, match="the variable degree is given no value") as raised:
        read(tmp_path, text, {"gpus": 256})
    assert "own.py:8" in str(raised.value)
    assert "var=degree=VALUE" in str(raised.value)
    assert read(tmp_path, text, {"gpus": 256}, {"degree": "2"}).layout["tp"] == 2


def test_performance_scripts_run_the_recipe_of_their_gpus(tmp_path):
    command = "python scripts/performance/setup_experiment.py --model_family_name llama --model_recipe_name llama3_70b "
    job = read(tmp_path, f"{command} --num_gpus 128 --gpu gb200 --compute_dtype fp8_cs -tp 2\n", name="run.sh")
    published = {"gpus": 128, "precision": "fp8-current", "framework": "megatron-bridge-perf"}
    assert stated(job, *published) == published
    with pytest.raises(InputError, match="no recipe of llama3_70b for gb200 in fp16"):
        read(tmp_path, f"{command} --num_gpus 64 --gpu gb200 --compute_dtype fp16\n", name="run.sh")


def test_performance_scripts_of_nemo_are_read(tmp_path):
    command = (
        "python -m scripts.performance.llm.pretrain_grok1_314b --gpu h100 -c fp8 -fr cs --num_gpus 512 -tp 4 -pp 8 "
    )
    path = tmp_path / "a.sh"
    path.write_text(f"{command} -cp 2 -ep 8 -et 1 -vp 8 -gb 1024 -mb 1 slurm --account a\n")
    job = read_launch([path], {}, {"seq": 8192})
    published = {"model": "grok1-314b", "gpus": 512, "precision": "fp8-current", "framework": "nemo", "gbs": 1024}
    layout = {"tp": 4, "pp": 8, "cp": 2, "ep": 8, "etp": 1, "vpp": 8, "sp": True, "micro_batch_size": 1}
    assert stated(job, *published, *layout) == published | layout
    assert {one.text for one in job.stated["precision"]} == {"-c fp8"}
    with pytest.raises(InputError, match="is not known here: micro_batch_size"):
        read(tmp_path, f"{command} -gb 1024 slurm --account a\n", name="run.sh")


def test_nanotron_configured_in_python(tmp_path):
    text = """
from nanotron.config import *
model_config = LlamaConfig(hidden_size=2048, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=4,
                           intermediate_size=8192, vocab_size=50272)
parallelism = ParallelismArgs(dp=4, pp=2, tp=2, pp_engine="1f1b", tp_mode=TensorParallelLinearMode.REDUCE_SCATTER,
                              tp_linear_async_communication=True)
config = Config(
    general=GeneralArgs(project="own", run="own"),
    parallelism=parallelism,
    model=ModelArgs(init_method=RandomInit(std=0.02), model_config=model_config, dtype=torch.bfloat16),
    tokens=TokensArgs(sequence_length=4096, train_steps=10, micro_batch_size=2, batch_accumulation_per_replica=4),
    optimizer=OptimizerArgs(zero_stage=1, accumulate_grad_in_fp32=True,
                            optimizer_factory=AdamWOptimizerArgs(adam_eps=1e-8)),
)
config.parallelism.recompute_layer = True
if __name__ == "__main__":
    config.save_as_yaml("config.yaml")
"""
    job = read(tmp_path, text)
    assert stated(job, "gpus", "tp", "pp", "schedule", "sp", "seq", "gbs", "micro_batch_size", "zero", "recompute") == {
        "gpus": 16, "tp": 2, "pp": 2, "schedule": "1f1b", "sp": True, "seq": 4096, "gbs": 32, "micro_batch_size": 2,
        "zero": 1, "recompute": "full",
    }  # fmt: skip
    elsewhere = text.replace("from nanotron", "import json\nstep = int(open('latest.txt').read())\nfrom nanotron")
    elsewhere = elsewhere.replace(
        "LlamaConfig(", "LlamaConfig(**json.load(open(f'ck/{step}/model.json')), unread=dict("
    )
    elsewhere = elsewhere.replace("vocab_size=50272)", "vocab_size=50272))")
    with pytest.raises(InputError, match="shape is in a file that is not here"):
        read(tmp_path, elsewhere)
    assert read(tmp_path, elsewhere, {"model": "llama3-8b"}).options["gbs"] == 32
    assert stated(job, "precision", "optimizer", "grad_dtype") == {
        "precision": "bf16", "optimizer": "adamw", "grad_dtype": None,
    }  # fmt: skip
    shape = dict(part.split("=") for part in job.options["model"].split(","))
    assert (shape["layers"], shape["hidden"], shape["kv_heads"], shape["ffn"]) == ("24", "2048", "4", "8192")


OLMO = """
from functools import partial
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.internal.experiment import build_config, main
from olmo_core.nn.transformer import TransformerConfig

SEQUENCE = 8192

def model(common):
    return TransformerConfig.olmo2_7B(vocab_size=common.tokenizer.padded_vocab_size())

def module(common):
    micro = 2 * common.max_sequence_length
    if common.launch is not None:
        micro *= 2
    return TransformerTrainModuleConfig(
        rank_microbatch_size=micro, max_sequence_length=common.max_sequence_length, compile_model=True,
        optim=SkipStepAdamWConfig(lr=3e-4), tp_config=TransformerTensorParallelConfig(degree=2),
        cp_config=TransformerContextParallelConfig.llama3(degree=2),
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.hsdp, param_dtype=DType.bfloat16, num_replicas=get_world_size() // 64),
        ac_config=TransformerActivationCheckpointingConfig(modules=["blocks.*.feed_forward"],
            mode=TransformerActivationCheckpointingMode.selected_modules),
        float8_config=Float8Config(enabled=False),
    )

if __name__ == "__main__":
    main(config_builder=partial(
        build_config, global_batch_size=512 * SEQUENCE, max_sequence_length=SEQUENCE,
        model_config_builder=model, train_module_config_builder=module,
    ))
"""


def test_builders_of_olmo_core_are_given_what_stands_beside_them(tmp_path):
    job = read(tmp_path, OLMO, {"gpus": 256})
    names = (
        "model",
        "seq",
        "gbs",
        "micro_batch_size",
        "tp",
        "cp",
        "cp_comm",
        "zero",
        "shard",
        "recompute",
        "precision",
        "master_dtype",
    )
    assert stated(job, *names) == {
        "master_dtype": None,
        "model": "olmo2-7b", "seq": 8192, "gbs": 512, "micro_batch_size": 2, "tp": 2, "cp": 2, "cp_comm": "all_gather",
        "zero": 3, "shard": 32, "recompute": "selective:mlp", "precision": "bf16",
    }  # fmt: skip
    with pytest.raises(InputError, match="on how many GPUs it runs"):
        read(tmp_path, OLMO)
    half = OLMO.replace("padded_vocab_size())", "padded_vocab_size(), dtype=DType.bfloat16)")
    assert stated(read(tmp_path, half, {"gpus": 256}), "master_dtype", "grad_dtype", "moment_dtype") == {
        "master_dtype": "none", "grad_dtype": "bf16", "moment_dtype": "bf16",
    }  # fmt: skip


COOKBOOK = {
    "name": "a", "budget": "b", "nodes": 2, "gpus": 8, "max_tokens": 10**9, "sequence_length": 4096,
    "model": "olmo2_7B", "tokenizer": "dolma2", "global_batch_size": 2**21,
    "dataset": {"sources": [{"name": "c", "paths": ["d"]}]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"micro_batch_size": 8, "recompute": "none"}),
        ({"activation_checkpointing": True, "rank_microbatch_size": 8192},
         {"micro_batch_size": 2, "recompute": "selective:mlp"}),
        ({"float8": True}, {"precision": "fp8-current"}),
        ({"dp_shard_degree": 4, "cp_degree": 2}, {"cp": 2, "shard": 8}),
    ],
)  # fmt: skip
def test_olmo_cookbook_makes_an_experiment_of_few_settings(tmp_path, more, expected):
    usual = {"model": "olmo2-7b", "gpus": 16, "seq": 4096, "gbs": 512, "zero": 3, "shard": 8, "precision": "bf16"}
    assert_has(job(tmp_path, a__yaml=COOKBOOK | more), **usual | {"compile": "on", "optimizer": "adamw"} | expected)


@pytest.mark.parametrize(("given", "gpus"), [({}, 16), ({"gpus": 32}, None)])
def test_nodes_of_olmo_core_have_eight_gpus_where_none_says_how_many(tmp_path, given, gpus):
    made = job(tmp_path, given, a__yaml=COOKBOOK | {"gpus": "null"})
    assert made.options.get("gpus") == gpus
    assert any(one.meaning == "nodes of 8 GPUs" for one in made.assumed) == (not given)


@pytest.mark.parametrize(
    ("nodes", "suggested"), [(2, "`gpus=16` (nodes 2, 8 GPUs each)"), (1, "`gpus=8` (one node of")]
)
def test_nodes_of_a_configuration_suggest_its_gpus(tmp_path, nodes, suggested):
    """Without `gpus`, which makes it olmo-cookbook's."""
    settings = {key: value for key, value in COOKBOOK.items() if key != "gpus"} | {"nodes": nodes}
    with pytest.raises(InputError) as caught:
        job(tmp_path, {}, a__yaml=settings)
    assert suggested in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("olmo2_32B", "olmo2-32b"), ("llama3_8B", "llama3-8b"), ("qwen3_8B", "qwen3-8b"), ("llama2_70B", "llama2-70b")],
)
def test_models_of_olmo_core_have_their_published_shape(tmp_path, name, expected):
    vocab = {"llama3-8b": 128256, "qwen3-8b": 151936, "llama2-70b": 32000}.get(expected, 100352)
    text = f"""
def build_config(opts, overrides):
    length = opts.sequence_length or 4096
    return ExperimentConfig(
        model=TransformerConfig.{name}(vocab_size={vocab}),
        data_loader=NumpyDataLoaderConfig(global_batch_size=2048 * 4096),
        train_module=TransformerTrainModuleConfig(
            rank_microbatch_size=4096, max_sequence_length=length, optim=AdamWConfig(lr=1e-4),
            dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp, param_dtype=DType.bfloat16)),
    ).merge(overrides)
main(build_config)
"""
    job = read(tmp_path, text, {"gpus": 64})
    assert stated(job, "model", "gbs", "zero", "recompute") == {
        "model": expected, "gbs": 2048, "zero": 3, "recompute": "none",
    }  # fmt: skip


XTUNER = """
from torch.optim import AdamW
pretrained_model_name_or_path = 'meta-llama/Llama-2-70b-hf'
max_length = 4096
sequence_parallel_size = 4
batch_size = 1
accumulative_counts = 2
accumulative_counts *= sequence_parallel_size
optim_type = AdamW
model = dict(type=SupervisedFinetune, llm=dict(
    type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=pretrained_model_name_or_path))
optim_wrapper = dict(type=AmpOptimWrapper, optimizer=dict(type=optim_type, lr=2e-5),
                     accumulative_counts=accumulative_counts, dtype='bfloat16')
"""


def test_xtuners_dictionaries(tmp_path):
    job = read(tmp_path, XTUNER, {"gpus": 32})
    names = ("model", "seq", "cp", "cp_comm", "gbs", "micro_batch_size", "precision", "zero", "recompute")
    assert stated(job, *names) == {
        "model": "meta-llama/Llama-2-70b-hf", "seq": 4096, "cp": 4, "cp_comm": "a2a", "gbs": 64, "micro_batch_size": 1,
        "precision": "bf16", "zero": 0, "recompute": "full",
    }  # fmt: skip
    stored = "quantization_config=dict(load_in_4bit=True, bnb_4bit_use_double_quant=True), "
    lora = XTUNER.replace("llm=dict(", f"lora=dict(type=LoraConfig, r=16), llm=dict({stored}")
    found = stated(read(tmp_path, lora, {"gpus": 32}), "tune", "base_dtype", "lora_rank", "lora_targets")
    assert found == {"tune": "qlora", "base_dtype": "nf4", "lora_rank": 16, "lora_targets": "all"}
    pairs = XTUNER.replace("SupervisedFinetune", "DPO") + "use_varlen_attn = True\nmax_packed_length = 2 * max_length\n"
    assert stated(read(tmp_path, pairs, {"gpus": 32}), "method", "seq") == {"method": "dpo", "seq": 8192}
    assert "one after the other" in str(read(tmp_path, f"{XTUNER}intra_layer_micro_batch = 2\n", {"gpus": 32}).assumed)
    with pytest.raises(InputError, match="towers of images"):
        read(tmp_path, XTUNER.replace("llm=dict(", "visual_encoder=dict(type=CLIP), llm=dict("), {"gpus": 32})


def test_xtuners_command_shards_as_deepspeed_does(tmp_path):
    (tmp_path / "own.py").write_text(XTUNER)
    command = "torchrun --nnodes 4 --nproc_per_node 8 own.py --deepspeed deepspeed_zero3\n"
    job = read(tmp_path, command, name="run.sh")
    assert stated(job, "gpus", "zero", "framework") == {"gpus": 32, "zero": 3, "framework": "deepspeed"}


def test_xtuners_classes(tmp_path):
    text = """
trainer = TrainerConfig(
    model_cfg=Qwen3MoE30BA3Config(), optim_cfg=AdamWConfig(lr=6e-5), global_batch_size=64, sp_size=2,
    dataloader_cfg=DataloaderConfig(pack_max_length=16384),
    fsdp_cfg=FSDPConfig(ep_size=8, torch_compile=True, cpu_offload=False, recompute_ratio=1.0),
)
"""
    job = read(tmp_path, text, {"gpus": 32})
    assert stated(job, "model", "seq", "gbs", "ep", "cp", "zero", "compile", "recompute") == {
        "model": "qwen3-30b-a3b", "seq": 16384, "gbs": 64, "ep": 8, "cp": 2, "zero": 3, "compile": "on",
        "recompute": "full",
    }  # fmt: skip


def test_a_program_that_configures_nothing_says_so(tmp_path):
    with pytest.raises(InputError, match="no configuration of a known framework"):
        read(tmp_path, "import torch\nmodel = torch.nn.Linear(4, 4)\n")


def test_a_frozen_language_model_is_training_of_towers_alone(tmp_path):
    text = "trainer: {devices: 8, num_nodes: 1}\nmodel: {num_layers: 4, mm_cfg: {llm: {freeze: FROZEN}}}\n"
    with pytest.raises(InputError, match="the language model is not trained"):
        read(tmp_path, text.replace("FROZEN", "true"), name="own.yaml")
    with pytest.raises(InputError) as raised:
        read(tmp_path, text.replace("FROZEN", "false"), name="own.yaml")
    assert "not trained" not in str(raised.value)


EXPERTS = """
from megatron.bridge.recipes.qwen.qwen3_moe import qwen3_235b_a22b_pretrain_config as base
from elsewhere import tune

def mine():
    cfg = base()
    cfg.model.moe_token_dispatcher_type = "flex"
    cfg.model.moe_flex_dispatcher_backend = "hybridep"
    cfg.model.expert_tensor_parallel_size = 1
    cfg.model.expert_model_parallel_size = 16
    tune(cfg.model)
    return cfg
"""


def test_experts_of_a_recipe_are_read_and_what_may_change_it_elsewhere_is_said(tmp_path):
    job = read(tmp_path, EXPERTS, {"gpus": 256})
    assert stated(job, "model", "tp", "pp", "ep", "etp", "dispatcher") == {
        "model": "qwen3-235b-a22b", "tp": 4, "pp": 16, "ep": 16, "etp": 1, "dispatcher": "hybridep",
    }  # fmt: skip
    assert [one.line for one in job.assumed if "what tune changes is in no file" in one.meaning] == [11]


@pytest.mark.parametrize(("said", "dispatcher"), [
    ("", "deepep"),
    ('moe_flex_dispatcher_backend = "hybridep"', "hybridep"),
    ('moe_token_dispatcher_type = "alltoall"', "alltoall"),
])  # fmt: skip
def test_a_recipe_that_switches_to_the_flex_dispatcher_leaves_it_switched(said, dispatcher, tmp_path):
    kept = [line for line in EXPERTS.splitlines() if "dispatcher" not in line and "tune" not in line]
    kept[-1:] = [f"    cfg.model.{said}"] * bool(said) + kept[-1:]
    assert stated(read(tmp_path, "\n".join(kept), {"gpus": 256}), "dispatcher") == {"dispatcher": dispatcher}


def test_a_recipe_that_nobody_knows_is_asked_for(tmp_path):
    text = EXPERTS.replace("qwen3_235b_a22b_pretrain_config", "new_235b_pretrain_config")
    with pytest.raises(InputError, match="what the recipe new_235b_pretrain_config sets is in no file"):
        read(tmp_path, text, {"gpus": 256})


def test_check_says_why_a_recipe_cannot_start(tmp_path):
    """EP 48 x ETP 1 does not divide the 64 ranks beside PP 4."""
    text = EXPERTS.replace("parallel_size = 16", "parallel_size = 48").replace("    tune(cfg.model)\n", "")
    (tmp_path / "own.py").write_text(text)
    found = check(launch_files=[tmp_path / "own.py"], gpus=256)
    assert not found.ok
    assert any("expert" in one.rule or "ep" in one.rule.split("_") for one in found.findings), found.findings


def test_the_launcher_says_how_large_the_world_is(tmp_path):
    (tmp_path / "own.py").write_text(OLMO)
    job = read(tmp_path, "torchrun --nnodes 16 --nproc_per_node 8 own.py\n", name="run.sh")
    assert stated(job, "gpus", "shard") == {"gpus": 128, "shard": 32}


def test_what_takes_too_long_is_refused_and_not_read_in_part(tmp_path):
    text = BRIDGE.replace("    pretrain(", "    y = 1\n    while y:\n        x = 1\n    pretrain(")
    with pytest.raises(InputError, match="more than 200,000 steps"):
        read(tmp_path, text, {"gpus": 256})


def test_a_degree_among_keywords_of_a_program_is_asked_about(tmp_path):
    text = (
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-1.5B', torch_dtype='bfloat16')\n"
        "layout = configure(dp_shard_degree=4, note=1)\n"
        "args = TrainingArguments(per_device_train_batch_size=2, bf16=True, parallel=layout)\n"
        "Trainer(model=model, args=args).train()\n"
    )
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(InputError, match="may change memory or time") as found:
        read_launch([tmp_path / "a.py"], {"gpus": 8, "seq": 2048})
    assert "dp_shard_degree" in str(found.value)


def test_texts_and_lists_that_hang_on_the_unknown_are_asked_for_too(tmp_path):
    text = EXPERTS.replace("def mine():", "def mine(backend, **more):").replace('"hybridep"', "backend")
    with pytest.raises(InputError, match="the variable backend is given no value"):
        read(tmp_path, text, {"gpus": 256})
    given = {"backend": "deepep"}
    assert read(tmp_path, text, {"gpus": 256}, given).options["dispatcher"] == "deepep"
    keywords = text.replace("cfg = base()", "cfg = base(**elsewhere())")
    job = read(tmp_path, keywords, {"gpus": 256}, given)
    assert any("gives as keywords is in no file" in one.meaning for one in job.assumed)


def test_recipes_of_the_libraries_are_jobs_that_can_be():
    """Each row states options of a job or a layout, and its degrees divide its model."""
    known = {**declared(JobOptions), **declared(Layout)}
    rows = {name: base.options for name in library() if (base := named_recipe(name))}
    assert len(rows) > 150
    for name, row in rows.items():
        assert not row.keys() - known.keys(), name
        model = load_model(row["model"])
        chunks = row.get("pp", 1) * row.get("vpp", 1)
        assert all(one.heads % row.get("tp", 1) == 0 for one in model.attentions), name
        assert chunks <= model.layers, name
        assert {"seq", "gbs"} <= row.keys(), name
