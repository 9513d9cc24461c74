from __future__ import annotations

from types import ModuleType

import pytest

from breakeven.configure import Patches


class Base:
    inherited = "base"

    def method(self) -> str:
        return "original"


class Derived(Base):
    own = "own"

    @property
    def size(self) -> int:
        return 1


class BoomError(Exception):
    pass


def test_attributes_come_back_when_the_stack_is_left() -> None:
    before = dict(vars(Derived)), dict(vars(Base))
    with Patches() as patches:
        patches.replace(Derived, "own", "patched")
        patches.replace(Derived, "size", property(lambda _: 2))
        patches.replace(Base, "method", lambda _: "patched")
        assert Derived.own == "patched"
        assert Derived().size == 2
        assert Derived().method() == "patched"
    assert (dict(vars(Derived)), dict(vars(Base))) == before


def test_inherited_attribute_is_uncovered_again_not_copied() -> None:
    with Patches() as patches:
        patches.replace(Derived, "inherited", "patched")
        assert (Derived.inherited, Base.inherited) == ("patched", "base")
    assert "inherited" not in vars(Derived)
    assert Derived.inherited == "base"


def test_new_attribute_is_gone_again() -> None:
    with Patches() as patches:
        patches.replace(Derived, "extra", 1)
        assert vars(Derived)["extra"] == 1
    assert not hasattr(Derived, "extra")


def test_name_that_a_package_imports_on_use_is_not_imported_to_be_replaced() -> None:
    package = ModuleType("package")
    vars(package)["__getattr__"] = pytest.fail
    with Patches() as patches:
        patches.replace(package, "heavy", 1)
        assert package.heavy == 1
    assert "heavy" not in vars(package)


def test_attribute_replaced_twice_gets_its_first_value_back() -> None:
    with Patches() as patches:
        patches.replace(Derived, "own", 1)
        patches.replace(Derived, "own", 2)
        assert Derived.own == 2
    assert Derived.own == "own"


def test_descriptor_comes_back_as_it_was_not_what_it_returns() -> None:
    class Owner:
        @staticmethod
        def make() -> str:
            return "original"

    before = vars(Owner)["make"]
    with Patches() as patches:
        patches.replace(Owner, "make", staticmethod(lambda: "patched"))
    assert vars(Owner)["make"] is before


def test_exception_inside_restores_all() -> None:
    before = dict(vars(Derived))

    def fail() -> None:
        with Patches() as patches:
            patches.replace(Derived, "own", 1)
            patches.replace(Derived, "inherited", 2)
            raise BoomError

    with pytest.raises(BoomError):
        fail()
    assert dict(vars(Derived)) == before
