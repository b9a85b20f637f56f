"""Grouped matrix products."""

import dtorch as dt
import numpy as np

CASES = []
ERRORS = []


def case(a, b, offs, ref, **more):
    args = lambda rng: (rng.standard_normal(a), rng.standard_normal(b), np.array(offs, np.int32))
    CASES.append(dict(op=grouped, args=args, ref=ref, grad=more.pop("grad", 2), **more))


def grouped(a, b, offs):
    return dt.nn.functional.grouped_mm(a, b, offs=offs)


def spans(offs):
    return list(zip([0, *offs[:-1]], offs, strict=True))


def by_rows(a, b, offs):
    y = np.zeros((a.shape[0], b.shape[2]))
    for g, (lo, hi) in enumerate(spans(offs)):
        y[lo:hi] = a[lo:hi] @ b[g]
    return y


def by_columns(a, b, offs):
    y = np.zeros((a.shape[1], b.shape[1]))
    for g, (lo, hi) in enumerate(spans(offs)):
        y[:, lo:hi] = a[g] @ b[:, lo:hi]
    return y


def by_sum(a, b, offs):
    return np.stack([a[:, lo:hi] @ b[lo:hi] for lo, hi in spans(offs)])


OFFSETS = {"some": [2, 5, 9], "empty": [0, 9, 9], "rest": [1, 1, 6], "none": [0, 0, 0]}
for word, offs in OFFSETS.items():
    case((9, 4), (3, 4, 5), offs, by_rows, id=f"rows-{word}")
    case((3, 6, 4), (4, 9), offs, by_columns, id=f"columns-{word}")
    case((6, 9), (9, 4), offs, by_sum, id=f"sum-{word}")
case((0, 4), (2, 4, 5), [0, 0], by_rows, id="no-rows")
case((5, 0), (2, 0, 3), [2, 5], by_rows, id="no-sum")
case((700, 96), (4, 96, 130), [3, 640, 641, 690], by_rows, id="rows-large", grad=True, tol=8, place=False)
case((2, 130, 96), (96, 700), [1, 700], by_columns, id="columns-large", grad=False, tol=8, place=False)
case((130, 700), (700, 96), [600, 700], by_sum, id="sum-large", grad=False, tol=20, place=False)

for a, b, offs, error, match in [
    ((8, 4), (3, 5, 6), [1, 2, 3], RuntimeError, "contraction dimension"),
    ((8, 4), (3, 4, 6), [1, 2], RuntimeError, "2 entries for 3 matrices"),
    ((8,), (3, 4, 6), [1, 2, 3], RuntimeError, "2- or 3-D"),
    ((8, 4), (3, 4, 6), [[1, 2, 3]], RuntimeError, "offs must be a 1-D"),
    ((8, 4), (3, 4, 6), [1, 2, 9], IndexError, r"offs\[2\] is 9, legal are 2"),
    ((8, 4), (3, 4, 6), [4, 2, 8], IndexError, r"offs\[1\] is 2"),
    ((3, 8, 4), (3, 4, 6), [1, 2, 3], RuntimeError, "offs must be None"),
]:
    ERRORS.append(dict(op=grouped, args=lambda rng, a=a, b=b, o=offs: (np.ones(a), np.ones(b), np.array(o)), error=error, match=match))
