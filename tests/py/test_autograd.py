"""Gradients from Python: backward, grad, hooks, custom functions, graph nodes, checks, functional derivatives."""

import gc
import weakref

import dtorch
import numpy as np
import pytest
from dtorch.autograd import Function


def leaf(*values):
    return dtorch.tensor(list(values), requires_grad=True)


def test_backward_accumulates():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5, 7] and x.grad is x.grad
    x.grad = None
    assert x.grad is None
    x.sum().backward()
    x.grad.zero_()
    assert x.grad.tolist() == [0, 0]


def test_backward_arguments():
    x, y = leaf(1.0, 2.0), leaf(3.0)
    out = x * y
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        out.backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        out.backward(dtorch.ones(3))
    out.backward(dtorch.tensor([1.0, 10.0]), retain_graph=True)
    assert y.grad.tolist() == [21]
    out.backward(dtorch.ones(2), inputs=[x])
    assert x.grad.tolist() == [6, 33] and y.grad.tolist() == [21]
    with pytest.raises(RuntimeError, match="second time|already been freed"):
        out.backward(dtorch.ones(2))
    with pytest.raises(RuntimeError, match="does not require grad"):
        dtorch.ones(1).backward()
    dtorch.autograd.backward([(x * 2).sum(), (y * 3).sum()])
    assert x.grad.tolist() == [8, 35] and y.grad.tolist() == [24]


def test_grad():
    x, y, z = leaf(2.0), leaf(3.0), leaf(1.0)
    gx, gy = dtorch.autograd.grad(x * y, (x, y))
    assert (gx.item(), gy.item()) == (3, 2) and x.grad is None
    (g,) = dtorch.autograd.grad(x**3, x, create_graph=True)
    (gg,) = dtorch.autograd.grad(g, x, create_graph=True)
    (ggg,) = dtorch.autograd.grad(gg, x)
    assert (g.item(), gg.item(), ggg.item()) == (12, 12, 6)
    with pytest.raises(RuntimeError, match="not have been used|unused"):
        dtorch.autograd.grad(x * 2, z)
    assert dtorch.autograd.grad(x * 2, z, allow_unused=True) == (None,)
    assert dtorch.autograd.grad(x * 2, z, materialize_grads=True)[0].item() == 0
    v = leaf(1.0, 2.0)
    (g,) = dtorch.autograd.grad([v * 2, v * v], v, [dtorch.ones(2), dtorch.tensor([1.0, 0.0])])
    assert g.tolist() == [4, 2]


def test_requires_grad():
    x = dtorch.ones(2)
    assert not x.requires_grad and x.is_leaf and x.grad_fn is None
    assert x.requires_grad_() is x and x.requires_grad
    y = x * 2
    assert y.requires_grad and not y.is_leaf and not y.detach().requires_grad
    with pytest.raises(RuntimeError):
        y.requires_grad_(False)
    with pytest.raises(RuntimeError, match="floating"):
        dtorch.ones(2, dtype=dtorch.int64).requires_grad_()
    x.requires_grad = False
    assert not (x * 2).requires_grad
    y.detach_()
    assert y.is_leaf and not y.requires_grad


def test_assigning_grad():
    x = leaf(1.0, 2.0)
    x.grad = dtorch.ones(2)
    x.sum().backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises((RuntimeError, TypeError)):
        x.grad = dtorch.ones(3)
    with pytest.raises(TypeError, match="Tensor or None"):
        x.grad = 5
    with pytest.raises(RuntimeError):
        x.grad = dtorch.ones(2, dtype=dtorch.float64)


def test_hooks():
    x = leaf(1.0, 2.0)
    seen = []
    h = x.register_hook(lambda g: seen.append(g.tolist()))
    h2 = x.register_hook(lambda g: g * 10)
    (x * 2).sum().backward()
    assert seen == [[2, 2]] and x.grad.tolist() == [20, 20]
    h.remove()
    h2.remove()
    x.grad = None
    y = x * 3
    y.register_hook(lambda g: g + 1)
    y.retain_grad()
    y.sum().backward()
    assert len(seen) == 1 and x.grad.tolist() == [6, 6] and y.grad.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        dtorch.ones(1).register_hook(print)
    with pytest.raises(TypeError, match="callable"):
        x.register_hook(5)


def test_post_accumulate_hooks():
    x = leaf(1.0)
    got = []
    h = x.register_post_accumulate_grad_hook(lambda t: got.append((t is x, t.grad.item())))
    (x * 4).backward()
    h.remove()
    (x * 4).backward()
    assert got == [(True, 4.0)]
    with pytest.raises(RuntimeError, match="non-leaf"):
        (x * 2).register_post_accumulate_grad_hook(print)


def test_hooks_that_raise():
    x = leaf(1.0)

    def bad(g):
        raise KeyError("mine")

    x.register_hook(bad)
    with pytest.raises(KeyError, match="mine"):
        (x * 2).backward()
    y = leaf(1.0)
    y.register_hook(lambda g: 5)
    with pytest.raises(TypeError, match="must return a Tensor or None"):
        (y * 2).backward()
    assert (leaf(2.0) * 2).item() == 4


def test_nodes():
    x = leaf(1.0)
    y = (x * 2).exp()
    node = y.grad_fn
    assert node.name() == "ExpBackward0" and "ExpBackward0" in repr(node) and node == y.grad_fn and hash(node) == hash(y.grad_fn)
    (mul, nr), *_ = node.next_functions
    assert mul.name() == "MulBackward0" and nr == 0
    names = [n.name() for n, _ in mul.next_functions if n is not None]
    assert names == ["AccumulateGrad"]
    del y, x
    gc.collect()
    assert node.next_functions[0][0].name() == "MulBackward0"


class Cube(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return 3 * x**2 * g * ctx.scale, None


def test_custom_function():
    x = leaf(2.0, 3.0)
    y = Cube.apply(x, 2.0)
    assert y.grad_fn.name() == "CubeBackward" and y.tolist() == [16, 54]
    y.sum().backward()
    assert x.grad.tolist() == [24, 54]
    (g,) = dtorch.autograd.grad(Cube.apply(x, 1.0).sum(), x, create_graph=True)
    (gg,) = dtorch.autograd.grad(g.sum(), x)
    assert gg.tolist() == [12, 18]
    assert not Cube.apply(dtorch.ones(1), 1.0).requires_grad
    with dtorch.no_grad():
        assert not Cube.apply(x, 1.0).requires_grad
    with pytest.raises(RuntimeError, match="should not be instantiated"):
        Cube()


class ExpOf(Function):
    """Saves its output."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g


def test_saved_outputs_have_their_history():
    x = leaf(0.5)
    (g,) = dtorch.autograd.grad(ExpOf.apply(x), x, create_graph=True)
    (gg,) = dtorch.autograd.grad(g, x)
    assert gg.item() == pytest.approx(dtorch.tensor(0.5).exp().item())


def test_contexts_are_freed():
    x = leaf(1.0)
    y = ExpOf.apply(x)
    ref = weakref.ref(y)
    del y
    gc.collect()
    assert ref() is None


class Split(Function):
    @staticmethod
    def forward(ctx, x):
        a, b, n = x * 2, x * 3, dtorch.tensor([1])
        ctx.mark_non_differentiable(n)
        ctx.set_materialize_grads(False)
        return a, n, b

    @staticmethod
    def backward(ctx, ga, gn, gb):
        assert gn is None
        return sum(g * k for g, k in ((ga, 2), (gb, 3)) if g is not None)


def test_several_outputs():
    x = leaf(1.0)
    a, n, b = Split.apply(x)
    assert not n.requires_grad and a.requires_grad
    b.backward()
    assert x.grad.item() == 3
    a, n, b = Split.apply(x)
    (a + b).backward()
    assert x.grad.item() == 8


def test_missing_gradients_are_zeros():
    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1, x * 1

        @staticmethod
        def backward(ctx, a, b):
            assert b.tolist() == [0, 0]
            return a + b

    x = leaf(1.0, 2.0)
    Two.apply(x)[0].sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_function_returning_its_input():
    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 7

    x = leaf(1.0)
    y = Same.apply(x)
    assert y is not x
    y.backward()
    assert x.grad.item() == 7


def test_errors_in_custom_functions():
    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g, g

    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Bad.apply(leaf(1.0)).backward()

    class Worse(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return ctx.saved_tensors[0]

    x = leaf(1.0)
    y = Worse.apply(x)
    with dtorch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with pytest.raises(NotImplementedError):
        Function.apply(leaf(1.0))


def test_gradcheck():
    x = dtorch.tensor([0.3, 0.8], dtype=dtorch.float64, requires_grad=True)
    assert dtorch.autograd.gradcheck(lambda t: (t.sin() * t).sum(), (x,))
    assert dtorch.autograd.gradgradcheck(lambda t: t**3, (x,))

    class Wrong(Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        dtorch.autograd.gradcheck(Wrong.apply, (x,))
    assert not dtorch.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False)


def test_functional():
    from dtorch.autograd import functional as AF

    x = dtorch.tensor([1.0, 2.0])
    j = AF.jacobian(lambda t: t * t, x)
    assert j.tolist() == [[2, 0], [0, 4]]
    h = AF.hessian(lambda t: (t**3).sum(), x)
    assert h.tolist() == [[6, 0], [0, 12]]
    out, g = AF.vjp(lambda t: t * t, x, dtorch.tensor([1.0, 10.0]))
    assert out.tolist() == [1, 4] and g.tolist() == [2, 40]
    out, t = AF.jvp(lambda t: t * t, x, dtorch.tensor([1.0, 10.0]))
    assert t.tolist() == [2, 40]
    jx, jy = AF.jacobian(lambda a, b: a * b, (x, dtorch.tensor([3.0, 4.0])))
    assert jx.tolist() == [[3, 0], [0, 4]] and jy.tolist() == [[1, 0], [0, 2]]


def test_gradients_keep_placements():
    mesh = dtorch.init_device_mesh("cpu", (2,))
    w = dtorch.distribute_tensor(dtorch.arange(6.0).view(3, 2), mesh, [dtorch.Shard(0)]).requires_grad_()
    x = dtorch.distribute_tensor(dtorch.ones(3, 2), mesh, [dtorch.Replicate()])
    (w * x * 2).sum().backward()
    assert w.grad.placements == (dtorch.Shard(0),) and w.grad.tolist() == [[2, 2]] * 3
    p = dtorch.ones(4, requires_grad=True)
    dtorch.distribute_tensor(p, mesh, [dtorch.Shard(0)]).pow(2).sum().backward()
    assert p.grad.tolist() == [2] * 4 and p.grad.device_mesh.ndim == 0


def test_atan2_has_no_gradient_at_the_origin():
    y, x = leaf(0.0, 1.0), leaf(0.0, 0.0)
    dtorch.atan2(y, x).sum().backward()
    assert y.grad.tolist() == [0, 0] and x.grad.tolist() == [0, -1]


def test_the_gradient_of_an_illegal_row_is_an_error_of_its_own():
    table = dtorch.zeros(3, 2, requires_grad=True)
    dtorch.nn.functional.embedding(dtorch.tensor([0, 3]), table).sum().backward()  # the output is never read
    with pytest.raises(IndexError, match="index 3 is out of bounds for a table of 3 rows"):
        table.grad.tolist()


@pytest.mark.parametrize("parameter", [True, False])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_leaf_and_a_hook_that_holds_it_are_collected(register, parameter):
    class Owner:
        def __init__(self):
            self.w = dtorch.nn.Parameter(dtorch.ones(3)) if parameter else dtorch.ones(3, requires_grad=True)
            getattr(self.w, register)(self.hook)

        def hook(self, g):
            calls.append(1)

    calls = []
    owner = Owner()
    (owner.w * 2).sum().backward()
    alive = weakref.ref(owner)
    y = (owner.w * 3).sum()  # while a graph leads to the leaf, the hook runs although nobody else holds it
    del owner
    gc.collect()
    y.backward()
    assert len(calls) == 2
    del y
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("kind", ["linear", "matmul", "batched", "cell"])
def test_products_of_few_rows_for_one_weight_are_summed(kind):
    """A weight used step by step: its gradient is made of many small products at once, and is what the single ones add up to."""
    rng = np.random.default_rng(0)
    steps, n, p, q = 40, 3, 48, 40
    w0, xs = rng.standard_normal((p, q)), rng.standard_normal((steps, n, q))
    gs = rng.standard_normal((steps, n, p))
    w = dtorch.tensor(w0, requires_grad=True)
    other = dtorch.tensor(w0, requires_grad=True)  # reached through a view
    total, want, want_other = 0, np.zeros((p, q)), np.zeros((p, q))
    for t in range(steps):
        x, g = dtorch.tensor(xs[t]), dtorch.tensor(gs[t])
        if kind == "matmul":
            total = total + ((x @ w.t()) * g).sum()
        elif kind == "batched":
            total = total + ((x.unsqueeze(0) @ w.t()) * g).sum()
        else:
            total = total + (dtorch.nn.functional.linear(x, w) * g).sum()
        want += gs[t].T @ xs[t]
        if kind == "cell" and t % 7 == 0:  # another shape in between, and a row alone
            total = total + (dtorch.nn.functional.linear(x[:2], w) * g[:2]).sum() + (dtorch.nn.functional.linear(x[0], other) * g[0]).sum()
            want += gs[t][:2].T @ xs[t][:2]
            want_other += np.outer(gs[t][0], xs[t][0])
    seen = []
    w.register_hook(lambda grad: seen.append(grad))
    total.backward(retain_graph=True)
    np.testing.assert_allclose(w.grad.numpy(), want, rtol=1e-12, atol=1e-12)
    assert len(seen) == 1
    np.testing.assert_allclose(seen[0].numpy(), want, rtol=1e-12, atol=1e-12)
    if kind == "cell":
        np.testing.assert_allclose(other.grad.numpy(), want_other, rtol=1e-12, atol=1e-12)
    total.backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * want, rtol=1e-12, atol=1e-12)


def test_second_gradient_through_products_of_few_rows():
    w = dtorch.tensor(np.random.default_rng(0).standard_normal((48, 48)), requires_grad=True)
    h = dtorch.ones(1, 48, dtype=dtorch.float64) / 48
    for _ in range(5):
        h = dtorch.nn.functional.linear(h, w).tanh()
    (g,) = dtorch.autograd.grad(h.sum(), w, create_graph=True)
    (second,) = dtorch.autograd.grad(g.square().sum(), w)

    def first(value):
        v = dtorch.tensor(value, requires_grad=True)
        h = dtorch.ones(1, 48, dtype=dtorch.float64) / 48
        for _ in range(5):
            h = dtorch.nn.functional.linear(h, v).tanh()
        return dtorch.autograd.grad(h.sum(), v)[0].square().sum().item()

    d = np.random.default_rng(1).standard_normal((48, 48))
    slope = (first(w.detach().numpy() + 1e-6 * d) - first(w.detach().numpy() - 1e-6 * d)) / 2e-6
    assert (second.numpy() * d).sum() == pytest.approx(slope, rel=1e-5)
