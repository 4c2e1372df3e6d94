"""Records behave as frozen dataclasses do."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from gpuscale.records import MANY, record


@record
class Point:
    """A record with every kind of field."""

    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x < 0")


@record(eq=False)
class Named:
    name: str


@record
class Sub(Point):
    z: float = 1.0


@dataclass(frozen=True)
class Plain:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1,), {}), ((1, 2), {}), ((1,), {"tags": ["a"]}), ((), {"x": 3, "y": 4})]
)
def test_fields_are_those_of_a_dataclass(args, kwargs):
    made, plain = Point(*args, **kwargs), Plain(*args, **kwargs)
    assert asdict(made) == asdict(plain)
    assert repr(made) == repr(plain).replace("Plain", "Point")
    assert [one.name for one in fields(made)] == ["x", "y", "tags"]
    assert asdict(replace(made, y=7)) == asdict(replace(plain, y=7))
    assert made.__replace__(y=7) == replace(made, y=7)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, [], 4), {}), ((1,), {"x": 1}), ((1,), {"z": 1})])
def test_wrong_arguments_are_refused(args, kwargs):
    with pytest.raises(TypeError, match="__init__"):
        Point(*args, **kwargs)


def test_a_record_cannot_be_changed():
    made = Point(1)
    with pytest.raises(FrozenInstanceError, match="'x' of Point"):
        made.x = 2
    with pytest.raises(FrozenInstanceError):
        made.other = 2
    with pytest.raises(FrozenInstanceError):
        del made.x
    assert made.x == 1


def test_records_are_equal_by_class_and_fields():
    assert Point(1, 2) == Point(1.0, 2.0) != Point(1, 3)
    assert Point(1, 2) != Plain(1, 2)
    assert Point(1) != Sub(1)
    assert Named("a") != Named("a")
    assert hash(Sub(1, 2, ())) == hash(Sub(1, 2, ())) != hash(Sub(1, 2, (), 3))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))


def test_defaults_are_made_anew_and_checks_run():
    assert Point(1).tags is not Point(1).tags
    with pytest.raises(ValueError, match="x < 0"):
        Point(-1)
    with pytest.raises(ValueError, match="x < 0"):
        Sub(-1)


def test_making_many_changes_nothing():
    @record
    class Local(Point):
        z: float = 1.0

    made = [Local(1, z=index) for index in range(2 * MANY)]
    assert [vars(one) for one in made] == [{"x": 1, "y": 0.0, "tags": [], "z": index} for index in range(2 * MANY)]
    assert len({id(one.tags) for one in made}) == 2 * MANY
    with pytest.raises(TypeError, match="__init__"):
        Local(1, w=2)
    with pytest.raises(ValueError, match="x < 0"):
        Local(-1)


def test_fields_may_be_asked_for_before_one_is_made():
    @record
    class Base:
        a: list[int] = field(default_factory=list)

    @record
    class Derived(Base):
        b: int = field(default=2, repr=False)

    assert [one.name for one in fields(Derived)] == ["a", "b"]
    assert (Derived(), Derived([1], 3).b) == (Derived([], 2), 3)


def test_a_subclass_before_its_base():
    @record
    class Base:
        a: int

    @record
    class Derived(Base):
        b: int = 2

    assert (Derived(1).a, Derived(1).b, Base(3).a) == (1, 2, 3)


def test_copies_are_equal():
    made = Sub(1, 2, ["a"], 3)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == made
