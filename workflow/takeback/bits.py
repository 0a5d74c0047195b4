"""The bits of floats as integers, and how far apart two floats are in units in the last place (ULP).

Equality is always by bits: ``-0.0`` and ``+0.0`` are different bits, and a NaN equals itself.
The distance is by value: it counts the representable floats from one to the other, so the two
zeros are 0 apart, and infinity is 1 beyond the largest finite float.
"""

from __future__ import annotations

import numpy as np

#: Distance of a NaN to anything but its own bits; also the bound at which distances between
#: float64 of opposite sign and huge size are cut, so that every distance fits an int64.
MAX_ULP = 2**63 - 1

_INTEGER = {"float32": np.int32, "float64": np.int64}
_INFINITY = {"float32": 0x7F800000, "float64": 0x7FF0000000000000}


def bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """The bits of ``values`` (any shape) taken as ``dtype``, as int64 of the same shape."""
    return np.asarray(values, dtype=dtype).view(_INTEGER[dtype]).astype(np.int64)


def ordinals(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Map bits (int64, any shape) to integers that grow with the float's value by 1 a float.

    The usual map of sign and magnitude to two's complement (Dawson, "Comparing floating point
    numbers", 2012); both zeros become 0.
    """
    bits = np.asarray(bits, dtype=np.int64)
    magnitude = bits & np.int64(np.iinfo(_INTEGER[dtype]).max)
    return np.where(bits < 0, -magnitude, magnitude)


def is_nan(bits: np.ndarray, dtype: str) -> np.ndarray:
    """True where ``bits`` (int64, any shape) are those of a NaN."""
    magnitude = np.asarray(bits, dtype=np.int64) & np.int64(np.iinfo(_INTEGER[dtype]).max)
    return magnitude > _INFINITY[dtype]


def ulp_distance(left: np.ndarray, right: np.ndarray, dtype: str) -> np.ndarray:
    """Distance in ULP between floats given by their bits.

    Args:
        left, right: bits as int64, of one shape (or of shapes that broadcast).
        dtype: ``float32`` or ``float64``.

    Returns:
        int64, at least 0: 0 for equal bits (NaN included) and between the two zeros,
        :data:`MAX_ULP` between a NaN and anything with other bits.
    """
    left, right = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
    a, b = ordinals(left, dtype), ordinals(right, dtype)
    low, high = np.minimum(a, b).view(np.uint64), np.maximum(a, b).view(np.uint64)
    # Two float64 may be almost 2**64 apart: unsigned arithmetic wraps to the right difference.
    with np.errstate(over="ignore"):
        distance = np.minimum(high - low, np.uint64(MAX_ULP)).astype(np.int64)
    distance = np.where(is_nan(left, dtype) | is_nan(right, dtype), np.int64(MAX_ULP), distance)
    return np.where(left == right, np.int64(0), distance)
