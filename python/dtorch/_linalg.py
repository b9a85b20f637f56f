"""Linear algebra that is composed of other functions: condition numbers, and inverses of tensors seen as matrices."""

from __future__ import annotations

import math

from dtorch import _C

_L = _C._submodules["linalg"]


def cond(A, p=None):
    """The condition number of matrices (..., m, n) in the norm `p`: None, 2 and -2 by singular values, others as norm(A) * norm(inv(A))."""
    if p is None or p in (2, -2):
        s = _L["svdvals"](A)
        if s.shape[-1] == 0:
            return A.new_zeros(A.shape[:-2])
        big, small = s[..., 0], s[..., -1]
        return small / big if p == -2 else big / small
    from dtorch import linalg

    if A.dim() < 2 or A.shape[-1] != A.shape[-2]:
        raise RuntimeError(f"linalg.cond: with p={p!r} A must be batches of square matrices, got {tuple(A.shape)}")
    if A.numel() == 0:
        return A.new_zeros(A.shape[:-2])
    return linalg.matrix_norm(A, p) * linalg.matrix_norm(_L["inv"](A), p)


def tensorinv(A, ind=2):
    """The inverse of A seen as a matrix from its last dimensions to its first `ind`: A (a..., b...) -> (b..., a...), equal products."""
    if ind <= 0:
        raise RuntimeError(f"Expected a strictly positive integer for 'ind', got {ind}")
    rows, cols = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    if math.prod(rows) != math.prod(cols):
        raise RuntimeError(
            f"Expected self to satisfy the requirement prod(self.shape[ind:]) == prod(self.shape[:ind]), but got {cols} and {rows}"
        )
    return _L["inv"](A.reshape(math.prod(rows), math.prod(cols))).reshape(cols + rows)


def tensorsolve(A, B, dims=None):
    """X with tensordot(A, X, X.dim()) == B; `dims` of A are moved to its end first."""
    if dims is not None:
        dims = tuple(dims)
        A = A.movedim(dims, tuple(range(A.dim() - len(dims), A.dim())))
    shape = tuple(A.shape[B.dim() :])
    if math.prod(shape) != math.prod(B.shape):
        raise RuntimeError(
            f"tensorsolve: the sizes of A after those of B must multiply to B.numel(), got {tuple(A.shape)} and {tuple(B.shape)}"
        )
    return _L["solve"](A.reshape(-1, math.prod(shape)), B.reshape(-1)).reshape(shape)


LINALG = {"cond": cond, "tensorinv": tensorinv, "tensorsolve": tensorsolve}
