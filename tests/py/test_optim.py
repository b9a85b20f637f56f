"""Optimisers against their formulas in NumPy; groups, state dicts, hooks; schedules against closed forms; averages.

FRAMEWORK=torch runs the same tests on PyTorch, where those fail that look at what PyTorch keeps in float32 (step counts, ASGD's and NAdam's
scalars) or has under another name.
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
nn, optim = torch.nn, torch.optim
sched = optim.lr_scheduler


def v(x):
    return x.detach().numpy()


# ---- the formulas: each takes (p, g, state, t) and changes p and state in place, in float64


def sgd(p, g, s, t, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False, maximize=False):
    g = (-g if maximize else g) + weight_decay * p
    if momentum:
        s["b"] = momentum * s["b"] + (1 - dampening) * g if "b" in s else g
        g = g + momentum * s["b"] if nesterov else s["b"]
    p -= lr * g


def adam(p, g, s, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False, maximize=False, decoupled=False):
    g = -g if maximize else g
    if decoupled:
        p *= 1 - lr * weight_decay
    else:
        g = g + weight_decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    second = s["v"]
    if amsgrad:
        second = s["top"] = np.maximum(s.get("top", 0), s["v"])
    p -= lr * (s["m"] / (1 - betas[0] ** t)) / (np.sqrt(second / (1 - betas[1] ** t)) + eps)


def adamw(p, g, s, t, weight_decay=1e-2, **kw):
    adam(p, g, s, t, weight_decay=weight_decay, decoupled=True, **kw)


def adagrad(p, g, s, t, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10):
    g = g + weight_decay * p
    s["sum"] = s.get("sum", initial_accumulator_value) + g * g
    p -= lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s["sum"]) + eps)


def adadelta(p, g, s, t, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0):
    g = g + weight_decay * p
    s["v"] = rho * s.get("v", 0) + (1 - rho) * g * g
    d = np.sqrt(s.get("u", 0) + eps) / np.sqrt(s["v"] + eps) * g
    s["u"] = rho * s.get("u", 0) + (1 - rho) * d * d
    p -= lr * d


def adamax(p, g, s, t, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0):
    g = g + weight_decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["u"] = np.maximum(betas[1] * s.get("u", 0), abs(g) + eps)
    p -= lr / (1 - betas[0] ** t) * s["m"] / s["u"]


def nadam(p, g, s, t, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum_decay=4e-3, decoupled_weight_decay=False):
    if decoupled_weight_decay:
        p *= 1 - lr * weight_decay
    else:
        g = g + weight_decay * p
    mu, after = (betas[0] * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in (t, t + 1))
    s["mu"] = s.get("mu", 1) * mu
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    m = after * s["m"] / (1 - s["mu"] * after) + (1 - mu) * g / (1 - s["mu"])
    p -= lr * m / (np.sqrt(s["v"] / (1 - betas[1] ** t)) + eps)


def radam(p, g, s, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0):
    g = g + weight_decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    m, bias2 = s["m"] / (1 - betas[0] ** t), 1 - betas[1] ** t
    limit = 2 / (1 - betas[1]) - 1
    rho = limit - 2 * t * betas[1] ** t / bias2
    if rho > 5:
        r = math.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))
        p -= lr * m * r * math.sqrt(bias2) / (np.sqrt(s["v"]) + eps)
    else:
        p -= lr * m


def rmsprop(p, g, s, t, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False):
    g = g + weight_decay * p
    s["v"] = alpha * s.get("v", 0) + (1 - alpha) * g * g
    second = s["v"]
    if centered:
        s["g"] = alpha * s.get("g", 0) + (1 - alpha) * g
        second = second - s["g"] ** 2
    d = g / (np.sqrt(second) + eps)
    if momentum:
        s["b"] = momentum * s.get("b", 0) + d
        d = s["b"]
    p -= lr * d


def rprop(p, g, s, t, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50)):
    sign = np.sign(g * s.get("prev", 0))
    factor = np.where(sign > 0, etas[1], np.where(sign < 0, etas[0], 1))
    s["size"] = np.clip(s.get("size", lr) * factor, *step_sizes)
    g = np.where(sign < 0, 0, g)
    p -= np.sign(g) * s["size"]
    s["prev"] = g


def asgd(p, g, s, t, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0):
    g = g + weight_decay * p
    eta = s.get("eta", lr)
    p *= 1 - lambd * eta
    p -= eta * g
    s["eta"] = lr / (1 + lambd * lr * t) ** alpha


CASES = [
    ("SGD", sgd, [{}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
                  {"momentum": 0.9, "dampening": 0.2, "maximize": True}]),
    ("Adam", adam, [{}, {"weight_decay": 0.1, "amsgrad": True}, {"maximize": True, "lr": 0.1, "betas": (0.7, 0.8)}]),
    ("AdamW", adamw, [{}, {"weight_decay": 0.3, "amsgrad": True, "eps": 1e-3, "lr": 0.1}]),
    ("Adagrad", adagrad, [{}, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}]),
    ("Adadelta", adadelta, [{}, {"weight_decay": 0.1, "rho": 0.5}]),
    ("Adamax", adamax, [{}, {"weight_decay": 0.1, "lr": 0.1}]),
    ("NAdam", nadam, [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "lr": 0.1}]),
    ("RAdam", radam, [{"lr": 0.1}, {"weight_decay": 0.1, "betas": (0.8, 0.9), "lr": 0.1}]),
    ("RMSprop", rmsprop, [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}]),
    ("Rprop", rprop, [{}, {"etas": (0.3, 2.0), "step_sizes": (1e-3, 0.03)}]),
    ("ASGD", asgd, [{}, {"lambd": 0.1, "weight_decay": 0.1}]),
]  # fmt: skip
ALL = [(name, rule, kw) for name, rule, kws in CASES for kw in kws]


def start(seed=0, shapes=((3, 4), (5,), ())):
    rng = np.random.RandomState(seed)
    return [rng.randn(*s) for s in shapes], rng


def steps(opt, params, rng, values=None, rule=None, kw=None, n=12):
    states = [{"t": 0} for _ in params]
    for i in range(n):
        for j, p in enumerate(params):
            g = rng.randn(*p.shape)
            if (i + j) % 4 == 0:  # without a gradient nothing moves and no step counts
                p.grad = None
                continue
            p.grad = torch.from_numpy(np.array(g))
            if rule is not None:
                states[j]["t"] += 1
                rule(values[j], np.array(g), states[j], states[j]["t"], **kw)
        opt.step()


@pytest.mark.parametrize("case", ALL, ids=[f"{c[0]}-{i}" for i, c in enumerate(ALL)])
def test_formula(case):
    name, rule, kw = case
    values, rng = start()
    values = [np.array(x) for x in values]
    params = [nn.Parameter(torch.from_numpy(x.copy())) for x in values]
    steps(getattr(optim, name)(params, **kw), params, rng, values, rule, kw)
    for p, want in zip(params, values, strict=True):
        np.testing.assert_allclose(v(p), want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", [*ALL, ("Adafactor", None, {}), ("Muon", None, {})], ids=lambda c: c[0])
def test_saving_and_loading_continues_bit_for_bit(case):
    name, _, kw = case
    values, rng = start(shapes=((3, 4), (5, 2)))
    params = [nn.Parameter(torch.from_numpy(x.astype(np.float32))) for x in values]
    opt = getattr(optim, name)(params, **kw)

    def run(o, ps, seed):
        r = np.random.RandomState(seed)
        for _ in range(4):
            for p in ps:
                p.grad = torch.from_numpy(r.randn(*p.shape).astype(np.float32))
            o.step()

    run(opt, params, 1)
    saved = copy.deepcopy(opt.state_dict())
    others = [nn.Parameter(p.detach().clone()) for p in params]
    other = getattr(optim, name)(others, **kw)
    other.load_state_dict(saved)
    run(opt, params, 2)
    run(other, others, 2)
    for a, b in zip(params, others, strict=True):
        np.testing.assert_array_equal(v(a), v(b))
    for entries in saved["state"].values():
        if "step" in entries:
            assert isinstance(entries["step"], torch.Tensor) and entries["step"].shape == () and float(entries["step"]) == 4


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop", "Adafactor", "Muon", "NAdam"])
def test_minimises(name):
    torch.manual_seed(0)
    w = torch.from_numpy(np.random.RandomState(0).randn(4, 3).astype(np.float32))
    p = nn.Parameter(torch.zeros(4, 3))
    opt = getattr(optim, name)([p], lr={"SGD": 0.2, "Adafactor": 0.3, "Adagrad": 0.5}.get(name, 0.05))
    first = None
    for _ in range(150):
        opt.zero_grad()
        loss = ((p - w) ** 2).sum()
        loss.backward()
        opt.step()
        first = float(loss) if first is None else first
    assert float(loss) < 0.05 * first


def test_learning_rate_may_be_a_tensor():
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    lr = torch.tensor(0.5)
    a, b = optim.SGD([p], lr=lr), optim.SGD([q], lr=0.5)
    for o, x in ((a, p), (b, q)):
        s = sched.ExponentialLR(o, 0.5)
        for _ in range(3):
            x.grad = torch.ones(3)
            o.step()
            s.step()
    np.testing.assert_array_equal(v(p), v(q))
    assert float(lr) == 0.0625  # written in place


def test_state_dict_format_is_pytorchs():
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    opt = optim.AdamW([{"params": params[:1], "lr": 0.1}, {"params": params[1:]}], weight_decay=0.2, amsgrad=True)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    s = opt.state_dict()
    assert sorted(s) == ["param_groups", "state"] and sorted(s["state"]) == [0, 1]
    assert [g["params"] for g in s["param_groups"]] == [[0], [1]] and [g["lr"] for g in s["param_groups"]] == [0.1, 1e-3]
    assert list(s["state"][0]) == ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    assert set(s["param_groups"][0]) == {
        "params", "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused",
        "decoupled_weight_decay",
    }  # fmt: skip
    assert optim.SGD(params, momentum=0.9).state_dict()["state"] == {}
    loaded = optim.AdamW(params, lr=5.0)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        loaded.load_state_dict(s)
    s["param_groups"] = s["param_groups"][:1]
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        loaded.load_state_dict(s)


def test_state_takes_the_dtype_of_its_parameter():
    p = nn.Parameter(torch.ones(2, dtype=torch.float64))
    q = nn.Parameter(torch.ones(2))
    opt = optim.Adam([p])
    p.grad = torch.ones_like(p)
    opt.step()
    other = optim.Adam([q])
    other.load_state_dict(opt.state_dict())
    assert other.state[q]["exp_avg"].dtype == torch.float32 and float(other.state[q]["step"]) == 1


def test_repr_and_names():
    p = nn.Parameter(torch.ones(1))
    assert repr(optim.Adadelta([p])) == (
        "Adadelta (\nParameter Group 0\n    capturable: False\n    differentiable: False\n    eps: 1e-06\n    foreach: None\n    lr: 1.0\n"
        "    maximize: False\n    rho: 0.9\n    weight_decay: 0\n)"
    )
    opt = optim.SGD(nn.Linear(1, 1).named_parameters(), lr=0.1)
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda p: optim.SGD(p), TypeError, "should be an iterable of Tensors or dicts"),
        (lambda p: optim.SGD([]), ValueError, "optimizer got an empty parameter list"),
        (lambda p: optim.SGD([3]), TypeError, "optimizer can only optimize Tensors, but one of the params is int"),
        (lambda p: optim.SGD([p * 2]), ValueError, "can't optimize a non-leaf Tensor"),
        (lambda p: optim.SGD([p], lr=-1), ValueError, "Invalid learning rate: -1"),
        (lambda p: optim.SGD([p], momentum=-1), ValueError, "Invalid momentum value: -1"),
        (lambda p: optim.SGD([p], nesterov=True), ValueError, "Nesterov momentum requires a momentum and zero dampening"),
        (lambda p: optim.Adam([p], betas=(1.0, 0.9)), ValueError, "Invalid beta parameter at index 0: 1.0"),
        (lambda p: optim.Adam([p], eps=-1), ValueError, "Invalid epsilon value: -1"),
        (lambda p: optim.SGD([{"params": [p]}, {"params": [p]}]), ValueError, "some parameters appear in more than one parameter group"),
        (lambda p: optim.SGD([{"params": {p}}]), TypeError, "organized in ordered collections"),
        (lambda p: optim.SGD([p]).add_param_group([p]), TypeError, "param_group must be a dict"),
        (lambda p: optim.LBFGS([p], line_search_fn="x"), ValueError, "only 'strong_wolfe' is supported"),
        (lambda p: optim.Muon([p]), ValueError, "Muon only supports 2D parameters"),
    ],
)
def test_errors(act, error, text):
    with pytest.raises(error, match=text):
        act(nn.Parameter(torch.ones(1)))


def test_zero_grad_closure_hooks_and_groups():
    p = nn.Parameter(torch.ones(2))
    opt, log = optim.SGD([p], lr=0.5), []
    pre = opt.register_step_pre_hook(lambda o, args, kw: log.append("pre"))
    opt.register_step_post_hook(lambda o, args, kw: log.append("post"))

    def closure():
        opt.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        log.append("closure")
        return loss

    assert float(opt.step(closure)) == 2.0 and p.tolist() == [0.0, 0.0]
    pre.remove()
    opt.step()
    assert log == ["pre", "closure", "post", "post"]
    g = p.grad
    opt.zero_grad(set_to_none=False)
    assert p.grad is g and not v(g).any()
    opt.zero_grad()
    assert p.grad is None
    q = nn.Parameter(torch.ones(1))
    opt.add_param_group({"params": q, "lr": 2.0})
    q.grad = torch.ones(1)
    opt.step()
    assert q.tolist() == [-1.0] and len(opt.param_groups) == 2


def test_a_class_of_ones_own():
    class Sign(optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        def step(self, closure=None):
            with torch.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        self.state[p]["seen"] = self.state[p].get("seen", 0) + 1
                        p.sub_(p.grad.sign(), alpha=group["lr"])

    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, -2.0])
    opt, calls = Sign([p], 0.5), []
    opt.register_step_post_hook(lambda o, args, kw: calls.append(1))
    opt.step()
    assert p.tolist() == [-0.5, 0.5] and calls == [1] and opt.state_dict()["state"][0]["seen"] == 1


@pytest.mark.parametrize("kw", [{"line_search_fn": "strong_wolfe"}, {"lr": 0.3, "max_iter": 60}])
def test_lbfgs(kw):
    w = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
    x = nn.Parameter(torch.tensor([3.0, -2.0, 5.0], dtype=torch.float64))
    opt = optim.LBFGS([x], **kw)

    def closure():
        opt.zero_grad()
        loss = (w * (x - 1) ** 2).sum() + (0.1 * (x - 1) ** 4).sum()
        loss.backward()
        return loss

    first = float(opt.step(closure))
    for _ in range(5):
        opt.step(closure)
    assert first > 60 and abs(v(x) - 1).max() < 1e-3
    state = opt.state_dict()["state"][0]
    assert {"func_evals", "n_iter", "d", "t", "old_dirs", "old_stps", "ro", "H_diag", "prev_flat_grad", "prev_loss"} <= set(state)


def rates(make, n=24, lr=0.1, opt="SGD", **kw):
    """The learning rates of n epochs, and the optimiser and schedule."""
    p = nn.Parameter(torch.zeros(1))
    o = getattr(optim, opt)([p], lr=lr, **kw)
    s = make(o)
    out = []
    for _ in range(n):
        out.append(float(o.param_groups[0]["lr"]))
        o.step()
        s.step()
    return np.array(out), o, s


E = np.arange(24)


def one_cycle(e, total=24, top=0.5):
    up = 0.3 * total - 1
    low, end = top / 25, top / 25 / 1e4
    return np.where(
        e <= up,
        top + (low - top) / 2 * (1 + np.cos(np.pi * e / up)),
        end + (top - end) / 2 * (1 + np.cos(np.pi * (e - up) / (total - 1 - up))),
    )


def triangle(e, up=4, down=6):
    x = e % (up + down)
    return np.where(x <= up, x / up, 1 - (x - up) / down)


SCHEDULES = {
    "LambdaLR": (lambda o: sched.LambdaLR(o, lambda e: 0.9**e), 0.1 * 0.9**E),
    "MultiplicativeLR": (lambda o: sched.MultiplicativeLR(o, lambda e: 0.8), 0.1 * 0.8**E),
    "StepLR": (lambda o: sched.StepLR(o, 4, 0.5), 0.1 * 0.5 ** (E // 4)),
    "MultiStepLR": (lambda o: sched.MultiStepLR(o, [3, 9, 3], 0.5), 0.1 * 0.5 ** (2.0 * (E >= 3) + (E >= 9))),
    "ConstantLR": (lambda o: sched.ConstantLR(o, 0.5, 4), np.where(E < 4, 0.05, 0.1)),
    "LinearLR": (lambda o: sched.LinearLR(o, 0.1, 0.9, 7), 0.1 * (0.1 + 0.8 * np.minimum(E, 7) / 7)),
    "ExponentialLR": (lambda o: sched.ExponentialLR(o, 0.9), 0.1 * 0.9**E),
    "CosineAnnealingLR": (lambda o: sched.CosineAnnealingLR(o, 6, 0.01), 0.01 + 0.09 * (1 + np.cos(np.pi * E / 6)) / 2),
    "CosineAnnealingWarmRestarts": (
        lambda o: sched.CosineAnnealingWarmRestarts(o, 4, 2),
        0.05 * (1 + np.cos(np.pi * np.array([*np.arange(4) / 4, *np.arange(8) / 8, *np.arange(12) / 16]))),
    ),
    "PolynomialLR": (lambda o: sched.PolynomialLR(o, 10, 2.0), 0.1 * (1 - np.minimum(E, 10) / 10) ** 2),
    "CyclicLR": (lambda o: sched.CyclicLR(o, 0.01, 0.2, 4, 6, cycle_momentum=False), 0.01 + 0.19 * triangle(E)),
    "CyclicLR2": (
        lambda o: sched.CyclicLR(o, 0.01, 0.2, 4, 6, mode="triangular2", cycle_momentum=False),
        0.01 + 0.19 * triangle(E) / 2.0 ** (E // 10),
    ),
    "OneCycleLR": (lambda o: sched.OneCycleLR(o, 0.5, total_steps=25, cycle_momentum=False), one_cycle(E, 25)),
    "SequentialLR": (
        lambda o: sched.SequentialLR(o, [sched.ConstantLR(o, 0.5, 100), sched.ExponentialLR(o, 0.9)], [5]),
        np.where(E < 5, 0.05, 0.1 * 0.9 ** np.maximum(E - 5, 0)),
    ),
    "ChainedScheduler": (
        lambda o: sched.ChainedScheduler([sched.ConstantLR(o, 0.1, 3), sched.ExponentialLR(o, 0.9)]),
        0.1 * np.where(E < 3, 0.1, 1) * 0.9**E,
    ),
    "SWALR": (
        lambda o: optim.swa_utils.SWALR(o, 0.02, 5, "linear"),
        0.1 + (0.02 - 0.1) * np.minimum(E, 5) / 5,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name):
    make, want = SCHEDULES[name]
    got, _, s = rates(make)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12)
    # Half of it, saved, loaded into a new one: the same other half.
    _, o, s = rates(make, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        s2 = make(other)
    other.load_state_dict(o.state_dict())
    s2.load_state_dict(s.state_dict())
    rest = []
    for _ in range(12):
        rest.append(other.param_groups[0]["lr"])
        other.step()
        s2.step()
    np.testing.assert_allclose(rest, want[12:], rtol=1e-7, atol=1e-12)


def test_one_cycle_and_cyclic_move_the_momentum_against_the_rate():
    got, o, s = rates(lambda o: sched.OneCycleLR(o, 0.5, total_steps=30), 24, momentum=0.9)
    assert 0.85 <= o.param_groups[0]["momentum"] <= 0.95
    _, o, _ = rates(lambda o: sched.OneCycleLR(o, 0.5, total_steps=30, pct_start=0.5), 14, opt="Adam")
    assert abs(o.param_groups[0]["betas"][0] - 0.85) < 1e-9  # the rate is at its top
    _, o, _ = rates(lambda o: sched.CyclicLR(o, 0.01, 0.2, 4), 4, momentum=0.9)
    assert abs(o.param_groups[0]["momentum"] - 0.8) < 1e-9
    with pytest.raises(ValueError, match="must support momentum or beta1"):
        sched.OneCycleLR(optim.Adagrad([nn.Parameter(torch.zeros(1))]), 0.1, total_steps=3)


def test_reduce_on_plateau():
    o = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    s = sched.ReduceLROnPlateau(o, factor=0.1, patience=1, cooldown=1, min_lr=0.05)
    seen = []
    for measure in [5, 4, 4, 4, 4, 4, 4, 4, 4, 3]:
        s.step(torch.tensor(float(measure)))
        seen.append(round(o.param_groups[0]["lr"], 6))
    assert seen == [1, 1, 1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05] and s.get_last_lr() == [0.05]
    up = sched.ReduceLROnPlateau(o, "max", threshold=0.5, threshold_mode="abs")
    assert up.is_better(2, 1) and not up.is_better(1.4, 1)
    for kw, text in (({"factor": 1.0}, "Factor should be < 1.0."), ({"mode": "x"}, "mode x is unknown!")):
        with pytest.raises(ValueError, match=text):
            sched.ReduceLROnPlateau(o, **kw)


def test_schedule_warnings_and_errors():
    o = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    s = sched.StepLR(o, 1)
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        s.step()
    assert s.get_last_lr() == [0.1]
    with pytest.raises(KeyError, match="param 'initial_lr' is not specified in param_groups"):
        sched.StepLR(optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), 1, last_epoch=3)
    with pytest.raises(TypeError, match="int is not an Optimizer"):
        sched.StepLR(3, 1)
    with pytest.raises(ValueError, match="Expected 1 lr_lambdas, but got 2"):
        sched.LambdaLR(o, [lambda e: e] * 2)
    with pytest.raises(ValueError, match="total_steps OR"):
        sched.OneCycleLR(o, 0.1)


def test_averaged_model():
    m = nn.Linear(2, 1)
    swa = optim.swa_utils.AveragedModel(m)
    ema = optim.swa_utils.AveragedModel(m, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.5))
    own = optim.swa_utils.AveragedModel(m, avg_fn=lambda a, p, n: a * 0 + p * 10)
    for x in (1.0, 2.0, 6.0):
        with torch.no_grad():
            m.weight.fill_(x)
        for a in (swa, ema, own):
            a.update_parameters(m)
    assert swa.module.weight.tolist() == [[3.0, 3.0]] and ema.module.weight.tolist() == [[3.75, 3.75]]
    assert own.module.weight.tolist() == [[60.0, 60.0]] and int(swa.n_averaged) == 3
    assert list(swa.state_dict()) == ["n_averaged", "module.weight", "module.bias"]
    other = optim.swa_utils.AveragedModel(m)
    other.load_state_dict(swa.state_dict())
    with torch.no_grad():
        m.weight.fill_(7.0)
    other.update_parameters(m)
    assert other.module.weight.tolist() == [[4.0, 4.0]]
    net = nn.Sequential(nn.BatchNorm1d(2))
    data = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])]
    optim.swa_utils.update_bn(data, net)
    assert net[0].running_mean.tolist() == [4.0, 5.0] and net[0].momentum == 0.1


def test_a_step_that_fails_is_not_counted():
    """The state lacks what the changed option needs; the next step that goes is the second one, as in PyTorch."""
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([p], lr=0.1)
    p.grad = torch.tensor([1.0, -2.0, 0.5])
    optimizer.step()
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(KeyError, match="max_exp_avg_sq"):
        optimizer.step()
    assert optimizer.state[p]["step"] == 1
    optimizer.param_groups[0]["amsgrad"] = False
    kept, optimizer.state[p]["exp_avg"] = optimizer.state[p]["exp_avg"], torch.ones(2)
    with pytest.raises(RuntimeError, match="exp_avg"):
        optimizer.step()
    optimizer.state[p]["exp_avg"] = kept
    optimizer.step()
    assert optimizer.state[p]["step"] == 2
    np.testing.assert_allclose(p.detach().numpy(), [0.8, 1.2, 0.8], rtol=1e-6)
