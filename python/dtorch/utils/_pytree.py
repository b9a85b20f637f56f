"""Flattening nested tuples, lists and dicts, and putting them together again."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["TreeSpec", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_unflatten"]

_LEAF = object()


class TreeSpec:
    """The shape of a nested structure: a container with the specs of its entries, or a leaf."""

    __slots__ = ("children", "keys", "num_leaves", "type")

    def __init__(self, type_, keys, children):
        self.type, self.keys, self.children = type_, keys, children
        self.num_leaves = 1 if type_ is _LEAF else sum(c.num_leaves for c in children)

    def __eq__(self, other):
        return isinstance(other, TreeSpec) and (self.type, self.keys, self.children) == (other.type, other.keys, other.children)

    __hash__ = None

    def __repr__(self):
        return "*" if self.type is _LEAF else f"TreeSpec({self.type.__name__}, {self.keys}, {self.children})"


def _entries(tree):
    """(keys, values) of a container, None for a leaf."""
    if type(tree) in (dict, OrderedDict):
        return list(tree), list(tree.values())
    if type(tree) in (list, tuple) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return None, list(tree)
    return None


def tree_flatten(tree):
    """The leaves of a nesting, in order, and its :class:`TreeSpec`."""
    found = _entries(tree)
    if found is None:
        return [tree], TreeSpec(_LEAF, None, [])
    keys, values = found
    leaves, specs = [], []
    for value in values:
        part, spec = tree_flatten(value)
        leaves += part
        specs.append(spec)
    return leaves, TreeSpec(type(tree), keys, specs)


def tree_unflatten(leaves, treespec):
    """The nesting of `treespec` with other leaves."""
    leaves = list(leaves)
    if len(leaves) != treespec.num_leaves:
        raise ValueError(f"tree_unflatten: the spec has {treespec.num_leaves} leaves, got {len(leaves)}")
    return _build(treespec, iter(leaves))


def _build(spec, source):
    # Not a function inside of tree_unflatten: one that calls itself is in a cycle with what it sees, the leaves, which would live until a collection.
    if spec.type is _LEAF:
        return next(source)
    values = [_build(child, source) for child in spec.children]
    if spec.keys is not None:
        return spec.type(zip(spec.keys, values, strict=True))
    return spec.type(*values) if hasattr(spec.type, "_fields") else spec.type(values)


def tree_leaves(tree):
    """The leaves of a nesting, in order."""
    return tree_flatten(tree)[0]


def tree_map(func, tree, *rests):
    """`func` of each leaf (and of those at the same places of `rests`), in the same nesting."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([func(*args) for args in zip(leaves, *(tree_leaves(r) for r in rests), strict=True)], spec)


def tree_map_only(kind, func, tree):
    """:func:`tree_map` for leaves of the given type; others stay."""
    return tree_map(lambda x: func(x) if isinstance(x, kind) else x, tree)
