"""A whole training step is issued without waiting: its input is held back until every call has returned."""

import threading

import dtorch
import numpy as np
import pytest
from dtorch import nn


def gated(x):
    """`x` again, not before the gate is opened; and the gate."""
    gate = threading.Event()

    def wait(a):
        if not gate.wait(60):
            raise TimeoutError("the gate stayed closed: a call waited for a value")
        return a

    return dtorch.host_call(wait, x, out=(tuple(x.shape), x.dtype)), gate


def net():
    dtorch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1), nn.Flatten(), nn.Linear(64, 8)
    )  # fmt: skip


def step(model, opt, x, y, schedule):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    opt.step()
    schedule.step()
    return loss, norm


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adafactor"]
)
def test_a_training_step_does_not_wait(name):
    rng = np.random.RandomState(0)
    x = dtorch.from_numpy(rng.randn(4, 1, 8, 8).astype(np.float32))
    y = dtorch.from_numpy(rng.randint(0, 8, 4))
    out = []
    for hold in (False, True):
        model = net()
        opt = getattr(dtorch.optim, name)(model.parameters())
        schedule = dtorch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
        dtorch.manual_seed(1)
        given, gate = gated(x) if hold else (x, None)
        results = [step(model, opt, given, y, schedule) for _ in range(2)]
        if hold:
            assert not gate.is_set()  # every call above has returned
            gate.set()
        out.append([float(v) for pair in results for v in pair] + [p.detach().numpy() for p in model.parameters()])
    for a, b in zip(*out, strict=True):
        np.testing.assert_array_equal(a, b)


def test_attention_recurrent_and_averaged_models_do_not_wait():
    x = dtorch.from_numpy(np.random.RandomState(0).randn(2, 5, 8).astype(np.float32))
    given, gate = gated(x)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    lstm = nn.LSTM(8, 4, bidirectional=True, batch_first=True)
    average = dtorch.optim.swa_utils.AveragedModel(encoder)
    out = encoder(given, mask=mask, is_causal=True)
    (out.sum() + lstm(out)[0].sum()).backward()
    average.update_parameters(encoder)
    state = encoder.state_dict()
    encoder.load_state_dict(state)
    assert not gate.is_set()
    gate.set()
    assert np.isfinite(out.detach().numpy()).all() and all(p.grad is not None for p in lstm.parameters())
