"""Bits and ULP distance, as properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from takeback.bits import MAX_ULP, bits_of, ordinals, ulp_distance

DTYPES = st.sampled_from(["float32", "float64"])


def floats(dtype: str, nan: bool = True) -> st.SearchStrategy[float]:
    return st.floats(width=int(dtype[-2:]), allow_nan=nan)


@st.composite
def typed_floats(draw: st.DrawFn, number: int, nan: bool = True) -> tuple[str, list[float]]:
    dtype = draw(DTYPES)
    return dtype, [draw(floats(dtype, nan)) for _ in range(number)]


def distance(dtype: str, left: float, right: float) -> int:
    a, b = bits_of(np.array([left, right]), dtype)
    return int(ulp_distance(a, b, dtype))


@given(typed_floats(2))
def test_distance_is_symmetric(given_floats):
    dtype, (left, right) = given_floats
    assert distance(dtype, left, right) == distance(dtype, right, left)


@given(typed_floats(2, nan=False))
def test_distance_is_zero_if_and_only_if_the_values_are_equal(given_floats):
    dtype, (left, right) = given_floats
    assert (distance(dtype, left, right) == 0) == (left == right)


@given(typed_floats(3, nan=False))
def test_distances_add_up_along_the_line(given_floats):
    dtype, values = given_floats
    low, middle, high = sorted(values)
    parts = distance(dtype, low, middle) + distance(dtype, middle, high)
    assert distance(dtype, low, high) == min(parts, MAX_ULP)


@given(typed_floats(1, nan=False))
def test_the_next_float_up_is_one_ulp_away(given_floats):
    dtype, (value,) = given_floats
    kind = np.dtype(dtype).type
    with np.errstate(over="ignore"):
        above = np.nextafter(kind(value), kind(np.inf))
    assert distance(dtype, value, float(above)) == (0 if above == value else 1)


@given(typed_floats(2, nan=False))
def test_ordinals_are_in_the_order_of_the_values(given_floats):
    dtype, (left, right) = given_floats
    a, b = ordinals(bits_of(np.array([left, right]), dtype), dtype)
    assert (a < b) == (left < right)


@given(typed_floats(1, nan=False))
def test_a_nan_is_as_far_as_can_be_from_every_number(given_floats):
    dtype, (value,) = given_floats
    assert distance(dtype, float("nan"), value) == MAX_ULP


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_nan_is_equal_to_its_own_bits_and_to_no_other_nan(dtype):
    quiet = int(bits_of(np.array([np.nan]), dtype)[0])
    assert ulp_distance(quiet, quiet, dtype) == 0
    assert ulp_distance(quiet, quiet + 1, dtype) == MAX_ULP


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_two_zeros_have_other_bits_and_no_distance(dtype):
    minus, plus = bits_of(np.array([-0.0, 0.0]), dtype)
    assert minus != plus
    assert ulp_distance(minus, plus, dtype) == 0


def test_distances_across_the_whole_float64_line_do_not_overflow():
    assert distance("float64", -np.finfo(np.float64).max, np.finfo(np.float64).max) == MAX_ULP
    assert distance("float32", -np.inf, np.inf) == 2 * 0x7F800000
