"""nn.Module: registration, attributes, walking, state dicts, hooks, conversion, printing, and the containers.

Expected texts and names are PyTorch's; FRAMEWORK=torch runs the same tests there.
"""

import copy
import gc
import importlib
import os
import weakref

import numpy as np
import pytest

FRAMEWORK = os.environ.get("FRAMEWORK", "dtorch")
torch = importlib.import_module(FRAMEWORK)
nn = torch.nn


def ones(*shape):
    return torch.ones(*shape)


def small():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Dropout(0.1)), nn.BatchNorm1d(3))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.w = nn.Parameter(ones(3))
        self.register_buffer("b", ones(1))
        self.register_buffer("c", ones(1), persistent=False)
        self.none = None
        self.register_parameter("p", None)

    def forward(self, x, scale=1):
        return self.a(x) * scale


def test_parameters_buffers_and_children_are_found_in_order():
    m = nn.Sequential(Both(), nn.Linear(2, 1, bias=False))
    assert [n for n, _ in m.named_parameters()] == ["0.w", "0.a.weight", "0.a.bias", "1.weight"]
    assert [n for n, _ in m.named_buffers()] == ["0.b", "0.c"]
    assert [n for n, _ in m.named_modules()] == ["", "0", "0.a", "1"]
    assert [n for n, _ in m.named_children()] == ["0", "1"]
    assert list(m.state_dict()) == ["0.w", "0.b", "0.a.weight", "0.a.bias", "1.weight"]
    assert [n for n, _ in m.named_parameters(prefix="x", recurse=True)][0] == "x.0.w"
    assert [n for n, _ in m[0].named_parameters(recurse=False)] == ["w"]


def test_a_shared_parameter_is_listed_once_and_saved_twice():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    m = nn.Sequential(a, b)
    assert [n for n, _ in m.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert [n for n, _ in m.named_parameters(remove_duplicate=False)] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(m.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    c = copy.deepcopy(m)
    assert c[0].weight is c[1].weight and c[0].weight is not a.weight
    m.double()
    assert m[0].weight is m[1].weight and m[0].weight.dtype == torch.float64


def test_assigning_follows_the_kind_of_the_value():
    m = Both()
    m.w = None
    assert m.w is None and "w" in m._parameters
    m.w = nn.Parameter(ones(2))
    with pytest.raises(TypeError, match=r"cannot assign '.*' as parameter 'w' \(.*nn.Parameter or None expected\)"):
        m.w = ones(2)
    m.b = ones(5)
    assert m._buffers["b"].shape == (5,)
    with pytest.raises(TypeError, match="as buffer 'b'"):
        m.b = 3
    m.a = nn.ReLU()
    with pytest.raises(TypeError, match=r"cannot assign 'int' as child module 'a'"):
        m.a = 3
    m.a = nn.Parameter(ones(1))  # from child to parameter
    assert "a" not in m._modules and "a" in m._parameters
    m.plain = 3
    m.plain = nn.Linear(1, 1)  # from plain attribute to child
    assert "plain" in m._modules
    m.t = ones(2)  # a plain tensor is neither
    assert "t" not in m._buffers and "t" not in m.state_dict()
    m.buf = nn.Buffer(ones(2), persistent=False)
    assert "buf" in m._buffers and "buf" not in m.state_dict()


def test_registries_and_attributes_agree_whoever_changes_them():
    m = Both()
    m._parameters["w"] = nn.Parameter(ones(7))
    assert m.w.shape == (7,)
    del m._modules["a"]
    assert not hasattr(m, "a")
    del m.b
    assert "b" not in m._buffers and not hasattr(m, "b")
    m._buffers.clear()
    assert not hasattr(m, "c")
    with pytest.raises(AttributeError, match="'Both' object has no attribute 'nothing'"):
        _ = m.nothing
    assert "w" in dir(m) and "forward" in dir(m)


def test_a_class_may_fall_back_to_another_object():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner") if FRAMEWORK == "torch" else self.__dict__["inner"], name)

    assert Wrapper(nn.Linear(2, 5)).out_features == 5


def test_a_module_is_freed_without_the_garbage_collector():
    m = small()
    w, p = weakref.ref(m), weakref.ref(m[0])
    gc.disable()
    try:
        del m
        assert w() is None and p() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda m: m.register_parameter("a.b", None), KeyError, "can.*t contain"),
        (lambda m: m.register_parameter("", None), KeyError, "can.*t be empty"),
        (lambda m: m.register_parameter("train", None), KeyError, "attribute 'train' already exists"),
        (lambda m: m.register_parameter("q", ones(2)), TypeError, "object to parameter 'q'"),
        (lambda m: m.register_parameter("q", 3), TypeError, "cannot assign 'int' object to parameter 'q'"),
        (lambda m: m.register_buffer("x", 3), TypeError, "cannot assign 'int' object to buffer 'x'"),
        (lambda m: m.register_buffer(3, None), TypeError, "buffer name should be a string. Got int"),
        (lambda m: m.add_module("x", 3), TypeError, "int is not a Module subclass"),
        (lambda m: m.add_module("a.b", m), KeyError, "module name can.*t contain"),
        (lambda m: m.get_submodule("0.x"), AttributeError, "Linear has no attribute `x`"),
        (lambda m: m.get_submodule("0.weight"), AttributeError, "`weight` is not an nn.Module"),
        (lambda m: m.get_parameter("0.training"), AttributeError, "`training` is not an nn.Parameter"),
        (lambda m: m.get_buffer("0.weight"), AttributeError, "`weight` is not a buffer"),
        (lambda m: m.train(3), ValueError, "training mode is expected to be boolean"),
        (lambda m: m.to(torch.int32), TypeError, "only accepts floating point or complex dtypes"),
        (lambda m: nn.Module()(3), NotImplementedError, r'Module \[Module\] is missing the required "forward" function'),
        (lambda m: nn.Module(3), TypeError, "takes 1 positional argument but 2 were given"),
    ],
)
def test_errors(act, error, text):
    with pytest.raises(error, match=text):
        act(small())


def test_assigning_before_init_is_an_error():
    class Early(nn.Module):
        def __init__(self, value):
            self.value = value
            super().__init__()

    with pytest.raises(AttributeError, match=r"cannot assign module before Module.__init__\(\) call"):
        Early(nn.ReLU())
    with pytest.raises(AttributeError, match=r"cannot assign parameters before Module.__init__\(\) call"):
        Early(nn.Parameter(ones(1)))
    assert Early(3).value == 3


def test_state_dict_round_trip_and_versions():
    m, n = small(), small()
    with torch.no_grad():
        m[0].weight.fill_(3.0)
        m[2].running_mean.fill_(2.0)
    s = m.state_dict()
    assert dict(s._metadata["2"]) == {"version": 2} and dict(s._metadata[""]) == {"version": 1}
    assert str(n.load_state_dict(s)) == "<All keys matched successfully>"
    for a, b in zip(m.state_dict().values(), n.state_dict().values(), strict=True):
        assert np.array_equal(a.numpy(), b.numpy())
    with torch.no_grad():
        m[0].weight.fill_(4.0)
    assert float(s["0.weight"][0, 0]) == 4.0  # shares storage
    assert float(n[0].weight[0, 0]) == 3.0  # does not
    assert not s["0.weight"].requires_grad and m.state_dict(keep_vars=True)["0.weight"] is m[0].weight


def test_state_dict_errors_are_pytorchs():
    with pytest.raises(RuntimeError) as e:
        nn.Sequential(nn.Linear(2, 3)).load_state_dict({"x": 1, "0.weight": torch.zeros(1, 1)})
    text = str(e.value).replace(f"{FRAMEWORK}.Size", "torch.Size")
    assert text == (
        "Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "0.bias". \n'
        '\tUnexpected key(s) in state_dict: "x". \n'
        "\tsize mismatch for 0.weight: copying a param with shape torch.Size([1, 1]) from checkpoint, "
        "the shape in current model is torch.Size([3, 2])."
    )
    with pytest.raises(RuntimeError, match="expected .*Tensor or Tensor-like object from checkpoint but received <class 'int'>"):
        nn.Linear(2, 3).load_state_dict({"weight": 3, "bias": torch.zeros(3)})
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like"):
        nn.Linear(2, 3).load_state_dict(3)
    missing, unexpected = nn.Linear(2, 3).load_state_dict({"x": 1}, strict=False)
    assert missing == ["weight", "bias"] and unexpected == ["x"]


def test_load_state_dict_assign_and_dtype():
    m = nn.Linear(2, 2)
    m.load_state_dict({"weight": torch.zeros(2, 2, dtype=torch.float64), "bias": torch.zeros(2)})
    assert m.weight.dtype == torch.float32  # copied into
    m.load_state_dict({"weight": torch.zeros(2, 2, dtype=torch.float64), "bias": torch.zeros(2)}, assign=True)
    assert m.weight.dtype == torch.float64 and isinstance(m.weight, nn.Parameter) and m.weight.requires_grad


def test_extra_state_and_state_dict_hooks():
    class Extra(nn.Module):
        value = None

        def get_extra_state(self):
            return 3

        def set_extra_state(self, state):
            self.value = state

    m = nn.Sequential(Extra())
    m.load_state_dict(m.state_dict())
    assert m[0].value == 3 and list(m.state_dict()) == ["0._extra_state"]
    log, n = [], nn.Linear(1, 1)
    n.register_state_dict_post_hook(lambda mod, state, prefix, meta: state.update(extra=1))
    n.register_state_dict_pre_hook(lambda mod, prefix, keep: log.append((prefix, keep)))
    n.register_load_state_dict_pre_hook(lambda mod, state, prefix, *rest: state.pop(prefix + "extra", None))
    handle = n.register_load_state_dict_post_hook(lambda mod, keys: log.append(keys.missing_keys))
    n.load_state_dict(n.state_dict())
    handle.remove()
    n.load_state_dict(n.state_dict())
    assert log == [("", False), [], ("", False)]


def test_forward_hooks_see_and_change_arguments_and_results():
    log, m = [], nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        m.weight.copy_(torch.eye(2) * 2)
    handles = [
        m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,)),
        m.register_forward_pre_hook(lambda mod, args, kw: log.append(("pre", len(args), kw)), with_kwargs=True, prepend=True),
        m.register_forward_hook(lambda mod, args, out: out * 2),
        m.register_forward_hook(lambda mod, args, kw, out: log.append(("post", out.tolist())), with_kwargs=True),
    ]
    assert m(ones(1, 2)).tolist() == [[8.0, 8.0]]
    assert log == [("pre", 1, {}), ("post", [[8.0, 8.0]])]
    for h in handles:
        h.remove()
    assert m(ones(1, 2)).tolist() == [[2.0, 2.0]] and len(log) == 2
    with m.register_forward_hook(lambda mod, args, out: out * 0):
        assert m(ones(1, 2)).tolist() == [[0.0, 0.0]]
    assert m(ones(1, 2)).tolist() == [[2.0, 2.0]]


def test_a_hook_that_is_always_called_sees_errors():
    called = []

    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("inside")

    m = Fails()
    m.register_forward_hook(lambda mod, args, out: called.append(out), always_call=True)
    m.register_forward_hook(lambda mod, args, out: called.append("not this"))
    with pytest.raises(RuntimeError, match="inside"):
        m(1)
    assert called == [None]


def test_full_backward_hooks():
    log, m = [], nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        m.weight.copy_(torch.eye(2) * 2)
    pre = m.register_full_backward_pre_hook(lambda mod, grads: (grads[0] * 5,))
    hook = m.register_full_backward_hook(lambda mod, gin, gout: log.append((gin[0].tolist(), gout[0].tolist())) or (gin[0] * 3,))
    x = torch.ones(1, 2, requires_grad=True)
    m(x).sum().backward()
    assert log == [([[10.0, 10.0]], [[5.0, 5.0]])]
    assert x.grad.tolist() == [[30.0, 30.0]] and m.weight.grad.tolist() == [[5.0, 5.0], [5.0, 5.0]]
    pre.remove()
    hook.remove()
    log.clear()
    m.register_full_backward_hook(lambda mod, gin, gout: log.append((gin, gout[0].tolist())))
    m(ones(1, 2)).sum().backward()  # no input wants a gradient
    assert log == [((None,), [[1.0, 1.0]])]


def test_global_hooks_are_taken_away_again():
    log, mod = [], nn.modules.module
    handles = [
        mod.register_module_forward_pre_hook(lambda m, args: log.append(type(m).__name__)),
        mod.register_module_forward_hook(lambda m, args, out: log.append("done")),
    ]
    m = nn.Sequential(nn.ReLU())
    m(ones(1))
    for h in handles:
        h.remove()
    m(ones(1))
    assert log == ["Sequential", "ReLU", "done", "done"]


def test_train_eval_apply_requires_grad_and_zero_grad():
    m = small()
    assert m.eval() is m and not any(x.training for x in m.modules()) and all(x.training for x in m.train().modules())
    seen = []
    assert m.apply(lambda x: seen.append(type(x).__name__)) is m
    assert seen == ["Linear", "ReLU", "Dropout", "Sequential", "BatchNorm1d", "Sequential"]
    assert not any(p.requires_grad for p in m.requires_grad_(False).parameters())
    n = nn.Linear(2, 2)
    n(ones(1, 2)).sum().backward()
    grad = n.weight.grad
    n.zero_grad(set_to_none=False)
    assert n.weight.grad is grad and grad.abs().sum().item() == 0
    n.zero_grad()
    assert n.weight.grad is None


def test_conversions_keep_parameters_and_change_floats_only():
    m = small()
    w = m[0].weight
    m[0](ones(1, 2)).sum().backward()
    for convert, dtype in (
        (lambda: m.double(), torch.float64),
        (lambda: m.half(), torch.float16),
        (lambda: m.bfloat16(), torch.bfloat16),
        (lambda: m.float(), torch.float32),
        (lambda: m.to(torch.float64), torch.float64),
        (lambda: m.to("cpu", torch.float32), torch.float32),
        (lambda: m.to(ones(1).double()), torch.float64),
        (lambda: m.to(dtype=torch.float32), torch.float32),
    ):
        assert convert() is m
        assert m[0].weight is w and w.dtype == dtype and w.grad.dtype == dtype and w.requires_grad
        assert m[2].running_mean.dtype == dtype and m[2].num_batches_tracked.dtype == torch.int64
    assert m.to("cpu")[0].weight is w


def test_copies_are_independent():
    m = small()
    c = copy.deepcopy(m)
    with torch.no_grad():
        c[0].weight.fill_(7.0)
    assert float(m[0].weight[0, 0]) != 7.0 and isinstance(c[0].weight, nn.Parameter)
    c[0].weight = nn.Parameter(ones(1))
    assert m[0].weight.shape == (3, 2) and [n for n, _ in c.named_parameters()] == [n for n, _ in m.named_parameters()]


def test_repr():
    assert repr(small()) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n  (1): Sequential(\n    (0): ReLU()\n"
        "    (1): Dropout(p=0.1, inplace=False)\n  )\n"
        "  (2): BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)\n)"
    )
    assert repr(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()])) == (
        "ModuleList(\n  (0-1): 2 x Linear(in_features=2, out_features=2, bias=True)\n  (2): ReLU()\n)"
    )
    assert repr(nn.ModuleDict({"a": nn.ReLU()})) == "ModuleDict(\n  (a): ReLU()\n)"


def test_sequential():
    m = nn.Sequential({"a": nn.Linear(2, 2)} if FRAMEWORK != "torch" else __import__("collections").OrderedDict(a=nn.Linear(2, 2)))
    assert list(m.state_dict()) == ["a.weight", "a.bias"]
    m = small()
    assert len(m) == 3 and m[-1] is m[2] and type(m[1:]) is nn.Sequential and len(m[1:]) == 2
    with pytest.raises(IndexError, match="index 5 is out of range"):
        m[5]
    popped = m.pop(1)
    assert isinstance(popped, nn.Sequential) and len(m) == 2 and isinstance(m[1], nn.BatchNorm1d)
    m.insert(1, nn.Tanh())
    assert [type(x).__name__ for x in m] == ["Linear", "Tanh", "BatchNorm1d"]
    del m[0]
    assert list(m._modules) == ["0", "1"] and isinstance(m[0], nn.Tanh)
    m[0] = nn.ELU()
    assert isinstance(m[0], nn.ELU) and len(m + m) == 4 and len(m * 2) == 4 and len(m.append(nn.ReLU())) == 3
    assert len(m.extend([nn.ReLU()])) == 4
    assert nn.Sequential(nn.ReLU(), nn.Flatten())(torch.tensor([[[-1.0, 2.0]]])).tolist() == [[0.0, 2.0]]


def test_module_list_and_dict():
    m = nn.ModuleList([nn.Linear(1, 1)])
    m.append(nn.ReLU()).extend([nn.Tanh(), nn.ELU()])
    m.insert(0, nn.GELU())
    del m[1]
    assert [type(x).__name__ for x in m] == ["GELU", "ReLU", "Tanh", "ELU"] and len(m[1:3]) == 2
    m += [nn.SiLU()]
    assert isinstance(m[-1], nn.SiLU) and isinstance(m.pop(-1), nn.SiLU) and len(m) == 4
    del m[::2]
    assert [type(x).__name__ for x in m] == ["ReLU", "ELU"]
    d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(1, 1)})
    d["c"] = nn.Tanh()
    d.update([("e", nn.ELU())])
    assert list(d) == ["a", "b", "c", "e"] and "a" in d and isinstance(d.pop("a"), nn.ReLU) and len(d) == 3
    assert list(d.state_dict()) == ["b.weight", "b.bias"] and [k for k, _ in d.items()] == list(d.keys())
    with pytest.raises(KeyError, match="attribute 'keys' already exists"):
        nn.ModuleDict({"keys": nn.ReLU()})


def test_parameter_list_and_dict():
    m = nn.ParameterList([ones(2), nn.Parameter(ones(1)), 3])
    m.append(ones(4))
    assert [n for n, _ in m.named_parameters()] == ["0", "1", "3"] and len(m) == 4 and m[2] == 3 and m[-1].shape == (4,)
    assert all(isinstance(m[i], nn.Parameter) for i in (0, 1, 3)) and len(m[:2]) == 2
    d = nn.ParameterDict({"a": ones(2), "b": 3})
    d["c"] = nn.Parameter(ones(1))
    assert list(d.state_dict()) == ["a", "c"] and list(d) == ["a", "b", "c"] and d.get("z") is None and d.pop("b") == 3
    assert len(d | {"e": ones(1)}) == 3 and len(d) == 2
    del d["a"]
    assert [n for n, _ in d.named_parameters()] == ["c"]


def test_parameter():
    p = nn.Parameter(ones(2))
    assert p.requires_grad and p.is_leaf and isinstance(p, torch.Tensor) and repr(p).startswith("Parameter containing:\ntensor(")
    assert not nn.Parameter(ones(2), requires_grad=False).requires_grad
    assert not isinstance(p * 2, nn.Parameter) and nn.Parameter().shape == (0,)
    q = copy.deepcopy(p)
    assert isinstance(q, nn.Parameter) and q is not p
    x = ones(2)
    w = nn.Parameter(x)
    with torch.no_grad():
        w.add_(1)
    assert x.tolist() == [2.0, 2.0]  # the parameter took the tensor's storage
