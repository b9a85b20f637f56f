"""nn.init and nn.utils: distributions, clipping, vectors, sequences, parametrisations, calls with other parameters; checkpoints.

FRAMEWORK=torch runs the same tests on PyTorch.
"""

import copy
import importlib
import math
import os
import warnings

import numpy as np
import pytest

FRAMEWORK = os.environ.get("FRAMEWORK", "dtorch")
torch = importlib.import_module(FRAMEWORK)
nn = torch.nn
init, utils = nn.init, nn.utils
parametrize = importlib.import_module(f"{FRAMEWORK}.nn.utils.parametrize")
parametrizations = importlib.import_module(f"{FRAMEWORK}.nn.utils.parametrizations")


def v(x):
    return x.detach().numpy()


# what fills, the standard deviation, the largest possible value
FILLS = [
    (lambda x: init.uniform_(x, -2, 1), 3 / 12**0.5, 2),
    (lambda x: init.normal_(x, 0, 0.3), 0.3, math.inf),
    (lambda x: init.trunc_normal_(x, 0, 1, -1, 1), 0.5396, 1),
    (init.xavier_uniform_, (2 / 500) ** 0.5, (6 / 500) ** 0.5),
    (lambda x: init.xavier_normal_(x, gain=2.0), 2 * (2 / 500) ** 0.5, math.inf),
    (lambda x: init.kaiming_uniform_(x, nonlinearity="relu"), (2 / 300) ** 0.5, (6 / 300) ** 0.5),
    (lambda x: init.kaiming_normal_(x, mode="fan_out", nonlinearity="relu"), (2 / 200) ** 0.5, math.inf),
    (lambda x: init.kaiming_uniform_(x, a=math.sqrt(5)), (1 / 900) ** 0.5, (1 / 300) ** 0.5),
    (init.orthogonal_, (1 / 300) ** 0.5, 1),
]


@pytest.mark.parametrize("case", FILLS)
def test_initialiser_distribution(case):
    fill, std, top = case
    p = nn.Parameter(torch.empty(200, 300))
    assert fill(p) is p and p.requires_grad and p.is_leaf
    x = v(p)
    assert abs(x.std() / std - 1) < 0.03 and abs(x).max() <= top * 1.0001
    assert abs(x.mean() - (-0.5 if top == 2 else 0)) < 5 * std / x.size**0.5 + 1e-6
    y = torch.empty(200, 300)
    fill(y)
    assert not np.array_equal(x, v(y))  # another draw


def test_initialisers_with_fixed_values():
    assert v(init.constant_(torch.empty(2), 3.0)).tolist() == [3, 3] and v(init.ones_(torch.empty(2))).all()
    assert not v(init.zeros_(torch.empty(2))).any() and np.array_equal(v(init.eye_(torch.empty(2, 3))), np.eye(2, 3))
    w = v(init.dirac_(torch.empty(4, 2, 3, 3), groups=2))
    x = np.random.RandomState(0).rand(1, 4, 5, 5).astype(np.float32)
    y = nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1, groups=2)
    assert np.array_equal(v(y), x)
    for shape in ((3, 5, 2), (10, 3)):
        q = v(init.orthogonal_(torch.empty(*shape))).reshape(shape[0], -1)
        small = q @ q.T if q.shape[0] < q.shape[1] else q.T @ q
        assert np.allclose(small, np.eye(len(small)), atol=1e-5)
    assert ((v(init.sparse_(torch.empty(10, 4), 0.33)) == 0).sum(0) == 4).all()


def test_gains_and_errors_of_initialisers():
    assert init.calculate_gain("tanh") == 5 / 3 and init.calculate_gain("relu") == 2**0.5 and init.calculate_gain("conv2d") == 1
    assert init.calculate_gain("leaky_relu", 0.2) == (2 / 1.04) ** 0.5 and init.calculate_gain("selu") == 0.75
    for act, text in (
        (lambda: init.calculate_gain("foo"), "Unsupported nonlinearity foo"),
        (lambda: init.xavier_normal_(torch.empty(3)), "fewer than 2 dimensions"),
        (lambda: init.kaiming_normal_(torch.empty(3, 3), mode="x"), "Mode x not supported"),
        (lambda: init.eye_(torch.empty(3)), "Only tensors with 2 dimensions"),
        (lambda: init.dirac_(torch.empty(3, 3)), "Only tensors with 3, 4, or 5 dimensions"),
    ):
        with pytest.raises(ValueError, match=text):
            act()
    with pytest.warns(UserWarning, match="Initializing zero-element tensors is a no-op"):
        init.kaiming_uniform_(torch.empty(0, 3))


def with_grads():
    rng = np.random.RandomState(0)
    ps = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(1))]
    for p in ps[:2]:
        p.grad = torch.from_numpy(rng.randn(*p.shape).astype(np.float32))
    return ps, np.concatenate([v(p.grad).ravel() for p in ps[:2]])


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, math.inf])
def test_clip_grad_norm(p):
    ps, g = with_grads()
    want = np.linalg.norm(g, p)
    total = utils.clip_grad_norm_(ps, 0.5, norm_type=p)
    assert total.dim() == 0 and np.isclose(float(total), want, rtol=1e-5)
    after = np.concatenate([v(q.grad).ravel() for q in ps[:2]])
    np.testing.assert_allclose(after, g * 0.5 / (want + 1e-6), rtol=1e-5)
    assert np.isclose(float(utils.get_total_norm([q.grad for q in ps[:2]], p)), 0.5, rtol=1e-4)
    utils.clip_grad_norm_(ps, 100.0, norm_type=p)  # small enough: nothing changes
    np.testing.assert_array_equal(np.concatenate([v(q.grad).ravel() for q in ps[:2]]), after)
    assert float(utils.clip_grad_norm_([], 1.0)) == 0.0


def test_clip_grad_of_one_tensor_bad_values_and_by_value():
    ps, g = with_grads()
    assert np.isclose(float(utils.clip_grad_norm_(ps[0], 1e9)), np.linalg.norm(v(ps[0].grad)), rtol=1e-5)
    utils.clip_grad_value_(ps, 0.3)
    np.testing.assert_allclose(np.concatenate([v(q.grad).ravel() for q in ps[:2]]), g.clip(-0.3, 0.3))
    ps[0].grad.fill_(math.inf)
    with pytest.raises(RuntimeError, match="non-finite, so it cannot be clipped"):
        utils.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)


def test_parameters_and_vectors():
    ps = [nn.Parameter(torch.arange(6.0).view(2, 3)), nn.Parameter(torch.ones(2))]
    x = utils.parameters_to_vector(ps)
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 1, 1]
    utils.vector_to_parameters(x.detach() * 2, ps)
    assert ps[0].tolist() == [[0, 2, 4], [6, 8, 10]] and ps[1].tolist() == [2, 2] and ps[0].requires_grad


def test_padded_sequences():
    seqs = [torch.arange(3.0), torch.arange(5.0), torch.arange(1.0)]
    x = utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=9.0)
    assert x.tolist() == [[0, 1, 2, 9, 9], [0, 1, 2, 3, 4], [0, 9, 9, 9, 9]]
    assert utils.rnn.pad_sequence(seqs).shape == (5, 3)
    assert utils.rnn.pad_sequence(seqs, batch_first=True, padding_side="left").tolist()[2] == [0, 0, 0, 0, 0]
    back = utils.rnn.unpad_sequence(x, torch.tensor([3, 5, 1]), batch_first=True)
    assert [b.tolist() for b in back] == [s.tolist() for s in seqs]
    packed = utils.rnn.pack_sequence(seqs, enforce_sorted=False)
    assert packed.data.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 4] and packed.batch_sizes.tolist() == [3, 2, 2, 1, 1]
    assert packed.sorted_indices.tolist() == [1, 0, 2] and packed.unsorted_indices.tolist() == [1, 0, 2]
    out, lengths = utils.rnn.pad_packed_sequence(packed, batch_first=True, padding_value=9.0, total_length=6)
    assert lengths.tolist() == [3, 5, 1] and out[:, :5].tolist() == x.tolist() and out.shape == (3, 6)
    with pytest.raises(RuntimeError, match="must be sorted in decreasing order"):
        utils.rnn.pack_sequence(seqs)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).t()

    def right_inverse(self, a):
        return a.triu()


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.ones(1) * 2)

    def forward(self, x):
        return x * self.k

    def right_inverse(self, x):
        return x / self.k


def test_parametrisations():
    m = nn.Linear(3, 3)
    parametrize.register_parametrization(m, "weight", Symmetric())
    parametrize.register_parametrization(m, "weight", Scale())
    assert list(m.state_dict()) == ["bias", "parametrizations.weight.original", "parametrizations.weight.1.k"]
    assert (
        type(m).__name__ == "ParametrizedLinear" and parametrize.is_parametrized(m, "weight") and not parametrize.is_parametrized(m, "bias")
    )
    w = v(m.weight)
    assert np.array_equal(w, w.T)
    m.weight = torch.eye(3)
    assert np.array_equal(v(m.weight), np.eye(3)) and float(m.parametrizations.weight.original[0, 0]) == 0.5
    m(torch.ones(1, 3)).sum().backward()
    assert v(m.parametrizations.weight.original.grad).tolist() == [[2, 4, 4], [0, 2, 4], [0, 0, 2]]
    c = copy.deepcopy(m)
    c.weight = torch.eye(3) * 5
    assert float(m.weight[0, 0]) == 1.0 and float(c.weight[0, 0]) == 5.0
    with parametrize.cached():
        assert m.weight is m.weight
    parametrize.remove_parametrizations(m, "weight")
    assert type(m) is nn.Linear and isinstance(m.weight, nn.Parameter) and np.array_equal(v(m.weight), np.eye(3))
    assert sorted(m.state_dict()) == ["bias", "weight"]

    class Wrong(nn.Module):
        def forward(self, x):
            return x[:1]

    with pytest.raises(ValueError, match="may not change the shape"):
        parametrize.register_parametrization(nn.Linear(3, 3), "weight", Wrong())
    with pytest.raises(ValueError, match="does not have a parameter, a buffer, or a parametrized element with name 'x'"):
        parametrize.register_parametrization(nn.Linear(3, 3), "x", Wrong())


def test_weight_norm():
    m = nn.Linear(3, 4)
    w = v(m.weight).copy()
    parametrizations.weight_norm(m)
    assert list(m.state_dict()) == ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]
    np.testing.assert_allclose(v(m.weight), w, rtol=1e-5)
    np.testing.assert_allclose(v(m.parametrizations.weight.original0)[:, 0], np.linalg.norm(w, axis=1), rtol=1e-5)
    m(torch.ones(2, 3)).sum().backward()
    assert m.parametrizations.weight.original0.grad is not None and m.parametrizations.weight.original1.grad is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c = nn.Conv2d(2, 3, 2)
        w = v(c.weight).copy()
        utils.weight_norm(c, dim=1)
        assert sorted(c.state_dict()) == ["bias", "weight_g", "weight_v"] and c.weight_g.shape == (1, 2, 1, 1)
        x = torch.ones(1, 2, 3, 3)
        want = v(nn.functional.conv2d(x, torch.from_numpy(w), c.bias))
        np.testing.assert_allclose(v(c(x)), want, rtol=1e-5)
        with torch.no_grad():
            c.weight_g.mul_(2)
        assert not np.allclose(v(c(x)), want)
        with torch.no_grad():
            c.weight_g.div_(2)
        utils.remove_weight_norm(c)
        assert sorted(c.state_dict()) == ["bias", "weight"]
        np.testing.assert_allclose(v(c.weight), w, rtol=1e-5)


def test_spectral_norm():
    m = parametrizations.spectral_norm(nn.Linear(5, 4))
    assert list(m.state_dict())[1:] == [f"parametrizations.weight.{n}" for n in ("original", "0._u", "0._v")]
    for _ in range(100):
        m(torch.ones(1, 5))
    m.eval()
    assert abs(np.linalg.norm(v(m.weight), 2) - 1) < 1e-3
    np.testing.assert_array_equal(v(m.weight), v(m.weight))  # evaluation does not iterate


def test_functional_call():
    call = utils.stateless.functional_call if FRAMEWORK == "dtorch" else torch.func.functional_call
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    m = nn.Sequential(a, b)
    with torch.no_grad():
        a.bias.zero_()
        b.bias.zero_()
    w = torch.eye(2) * 3
    assert call(m, {"0.weight": w}, (torch.ones(1, 2),)).tolist() == [[9.0, 9.0]]  # ties count
    w.requires_grad_()
    call(m, {"0.weight": w}, torch.ones(1, 2)).sum().backward()
    assert w.grad is not None and a.weight.grad is None and m[0].weight is a.weight


def test_sdpa_kernel_is_accepted():
    attention = importlib.import_module(f"{FRAMEWORK}.nn.attention")
    q = torch.ones(1, 1, 2, 4)
    with attention.sdpa_kernel([attention.SDPBackend.MATH, attention.SDPBackend.FLASH_ATTENTION]):
        assert nn.functional.scaled_dot_product_attention(q, q, q).shape == q.shape


def test_checkpoint():
    checkpoint = importlib.import_module(f"{FRAMEWORK}.utils.checkpoint")
    m = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    x = torch.from_numpy(np.random.RandomState(0).randn(4, 3).astype(np.float32))

    def run(f):
        torch.manual_seed(1)
        m.zero_grad()
        out = f(x)
        out.sum().backward()
        return [v(out).copy()] + [v(p.grad).copy() for p in m.parameters()]

    want = run(m)
    for f in (
        lambda x: checkpoint.checkpoint(m, x, use_reentrant=False),
        lambda x: checkpoint.checkpoint_sequential(m, 2, x, use_reentrant=False),
    ):
        for a, b in zip(run(f), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_pytree():
    pytree = importlib.import_module(f"{FRAMEWORK}.utils._pytree")
    tree = {"a": [1, (2, 3)], "b": None}
    leaves, spec = pytree.tree_flatten(tree)
    assert leaves == [1, 2, 3, None] and pytree.tree_unflatten(leaves, spec) == tree
    assert pytree.tree_map(lambda x: x and x * 2, tree) == {"a": [2, (4, 6)], "b": None}
