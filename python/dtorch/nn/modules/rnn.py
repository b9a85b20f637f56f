"""Recurrent layers. The input's share of all gates is computed for the whole sequence at once; the recurrence is one operator a direction.

Gates are stacked in the weights in PyTorch's order: LSTM i, f, g, o; GRU r, z, n.
"""

from __future__ import annotations

import math
import warnings

import dtorch
from dtorch.nn import functional as F
from dtorch.nn import init
from dtorch.nn.modules.module import Module
from dtorch.nn.parameter import Parameter
from dtorch.nn.utils.rnn import PackedSequence

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNBase", "RNNCell", "RNNCellBase"]

_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


_MODES = {"RNN_TANH": 0, "RNN_RELU": 1, "LSTM": 2, "GRU": 3}
_ops = dtorch._C._ops


def _wants_grad(*tensors):
    return dtorch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _step_tanh(gx, h, w, b):
    out = (gx + F.linear(h[0], w, b)).tanh()
    return (out,)


def _step_relu(gx, h, w, b):
    out = (gx + F.linear(h[0], w, b)).relu()
    return (out,)


def _step_lstm(gx, h, w, b):
    i, f, g, o = (gx + F.linear(h[0], w, b)).chunk(4, -1)
    c = f.sigmoid() * h[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _step_gru(gx, h, w, b):
    xr, xz, xn = gx.chunk(3, -1)
    hr, hz, hn = F.linear(h[0], w, b).chunk(3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (n + z * (h[0] - n),)


_STEP = {"RNN_TANH": _step_tanh, "RNN_RELU": _step_relu, "LSTM": _step_lstm, "GRU": _step_gru}


class RNNBase(Module):
    """What RNN, LSTM and GRU have in common: weights, shapes, layers and directions."""

    def __init__(
        self,
        mode,
        input_size,
        hidden_size,
        num_layers=1,
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        proj_size=0,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if mode not in _GATES:
            raise ValueError("Unrecognized RNN mode: " + mode)
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
            raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element being zeroed")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers greater "
                f"than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=2,
            )
        for name, size in (("hidden_size", hidden_size), ("num_layers", num_layers)):
            if not isinstance(size, int):
                raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
            if size <= 0:
                raise ValueError(f"{name} must be greater than zero")
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._make_weights({"device": device, "dtype": dtype})
        self.reset_parameters()

    def _make_weights(self, where):
        directions = 2 if self.bidirectional else 1
        gates = _GATES[self.mode] * self.hidden_size
        out = self.proj_size or self.hidden_size
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else out * directions
            for suffix in self._suffixes(layer):
                setattr(self, "weight_ih" + suffix, Parameter(dtorch.empty((gates, width), **where)))
                setattr(self, "weight_hh" + suffix, Parameter(dtorch.empty((gates, out), **where)))
                if self.bias:
                    setattr(self, "bias_ih" + suffix, Parameter(dtorch.empty(gates, **where)))
                    setattr(self, "bias_hh" + suffix, Parameter(dtorch.empty(gates, **where)))
                if self.proj_size:
                    setattr(self, "weight_hr" + suffix, Parameter(dtorch.empty((self.proj_size, self.hidden_size), **where)))

    def _suffixes(self, layer):
        return [f"_l{layer}", f"_l{layer}_reverse"] if self.bidirectional else [f"_l{layer}"]

    @property
    def all_weights(self):
        """The parameters of each layer and direction."""
        names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if self.bias else []) + (["weight_hr"] if self.proj_size else [])
        return [[getattr(self, n + s) for n in names] for layer in range(self.num_layers) for s in self._suffixes(layer)]

    def flatten_parameters(self):
        """Nothing to do: the weights need not lie together."""

    def reset_parameters(self):
        """All parameters uniform in +-1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _check_input(self, input):
        if input.dim() not in (2, 3):
            raise ValueError(f"{self._get_name()}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}")

    def _initial(self, hx, batch, batched, like):
        """The initial states, a tuple of (layers * directions, N, size)."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.proj_size or self.hidden_size] + ([self.hidden_size] if self.mode == "LSTM" else [])
        if hx is None:
            where = {"device": like.device}
            if like.dim() == 3 and any(p.is_shard(1) for p in like.placements):  # zeros where the batch is: nothing moves
                keep = [p if p.is_shard(1) else dtorch.Replicate() for p in like.placements]
                where = {"device_mesh": like.device_mesh, "placements": keep}
            return tuple(dtorch.zeros((count, batch, s), dtype=like.dtype, **where) for s in sizes)
        states = tuple(hx) if self.mode == "LSTM" else (hx,)
        names = ("hidden[0]", "hidden[1]") if self.mode == "LSTM" else ("hidden",)
        if len(states) != len(sizes):
            raise RuntimeError(f"{self._get_name()}: expected hx to be a pair (h_0, c_0), got {len(states)} tensors")
        kind = "batched 3-D" if batched else "unbatched 2-D"
        for state in states:
            if state.dim() != (3 if batched else 2):
                raise RuntimeError(f"For {kind} input, hx should also be {3 if batched else 2}-D but got {state.dim()}-D tensor")
        states = states if batched else tuple(s.unsqueeze(1) for s in states)
        for name, state, size in zip(names, states, sizes, strict=True):
            if tuple(state.shape) != (count, batch, size):
                raise RuntimeError(f"Expected {name} size {(count, batch, size)}, got {list(state.shape)}")
        return states

    def _run_direction(self, x, state, suffix, backwards, sizes):
        """One layer in one direction: x (T, N, in) or packed (R, in) -> outputs (T, N, out) or (R, out) and the last state."""
        w, b = getattr(self, "weight_hh" + suffix), getattr(self, "bias_hh" + suffix, None)
        bias = getattr(self, "bias_ih" + suffix, None)
        if b is not None and self.mode != "GRU":  # the two biases are added to the same gates
            bias, b = bias + b, None
        gates = F.linear(x, getattr(self, "weight_ih" + suffix), bias)
        c = state[1] if self.mode == "LSTM" else None
        projection = getattr(self, "weight_hr" + suffix) if self.proj_size else None
        save = _wants_grad(gates, *state, w, b, projection)
        out, h, c, _ = _ops.rnn_layer(gates, state[0], c, w, b, projection, sizes, _MODES[self.mode], backwards, save)
        if out.dtype != gates.dtype:  # 16-bit gates are computed in float32
            out, h, c = out.to(gates.dtype), h.to(gates.dtype), c.to(gates.dtype)
        return out, (h, c) if self.mode == "LSTM" else (h,)

    def _run(self, x, states, sizes=None):
        """All layers: x (T, N, in) or packed, states (layers * directions, N, size) each -> outputs and last states."""
        last = []
        directions = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            outs = []
            for d, suffix in enumerate(self._suffixes(layer)):
                k = layer * directions + d
                out, state = self._run_direction(x, tuple(s[k] for s in states), suffix, d == 1, sizes)
                outs.append(out)
                last.append(state)
            x = outs[0] if directions == 1 else dtorch.cat(outs, -1)
            if self.dropout > 0 and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(dtorch.stack(list(s)) for s in zip(*last, strict=True))

    def _run_packed(self, packed, hx):
        """Sequences of several lengths: the rows of each step lie together, and steps only get shorter."""
        sizes = packed.batch_sizes
        order, back = packed.sorted_indices, packed.unsorted_indices
        count = packed.counts[0]
        states = self._initial(self._permuted(hx, order), count, True, packed.data)
        out, last = self._run(packed.data, states, sizes.to(packed.data.device))
        if back is not None:
            last = tuple(s.index_select(1, back) for s in last)
        return packed.like(out), last

    def _permuted(self, hx, order):
        if hx is None or order is None:
            return hx
        if self.mode == "LSTM":
            return tuple(h.index_select(1, order) for h in hx)
        return hx.index_select(1, order)

    def forward(self, input, hx=None):
        if isinstance(input, PackedSequence):
            out, last = self._run_packed(input, hx)
            return out, (last if self.mode == "LSTM" else last[0])
        self._check_input(input)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        if x.shape[0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        out, last = self._run(x, self._initial(hx, x.shape[1], batched, x))
        if not batched:
            out, last = out.squeeze(1), tuple(s.squeeze(1) for s in last)
        elif self.batch_first:
            out = out.transpose(0, 1)
        return out, (last if self.mode == "LSTM" else last[0])

    def extra_repr(self):
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        if self.batch_first is not False:
            text += f", batch_first={self.batch_first}"
        if self.dropout != 0:
            text += f", dropout={self.dropout}"
        if self.bidirectional is not False:
            text += f", bidirectional={self.bidirectional}"
        return text


class RNN(RNNBase):
    """``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)``: (L, N, in) -> (L, N, directions * hidden) and the last h."""

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        nonlinearity="tanh",
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        device=None,
        dtype=None,
    ):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        mode = "RNN_" + nonlinearity.upper()
        super().__init__(mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory: (L, N, in) -> (L, N, directions * out) and the last (h, c); `proj_size` projects h."""

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        proj_size=0,
        device=None,
        dtype=None,
    ):
        super().__init__("LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)


class GRU(RNNBase):
    """Gated recurrent unit: (L, N, in) -> (L, N, directions * hidden) and the last h."""

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        device=None,
        dtype=None,
    ):
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype)


class RNNCellBase(Module):
    """One step of a recurrent layer."""

    _mode = "RNN_TANH"

    def __init__(self, input_size, hidden_size, bias, num_chunks, device=None, dtype=None):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        self.weight_ih = Parameter(dtorch.empty((num_chunks * hidden_size, input_size), device=device, dtype=dtype))
        self.weight_hh = Parameter(dtorch.empty((num_chunks * hidden_size, hidden_size), device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(dtorch.empty(num_chunks * hidden_size, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """All parameters uniform in +-1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _step(self, mode, input, states):
        """(N, in) or (in,) and the states -> the new states."""
        if input.dim() not in (1, 2):
            raise ValueError(f"{self._get_name()}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        count = 2 if mode == "LSTM" else 1
        if states is None:
            states = (dtorch.zeros((x.shape[0], self.hidden_size), dtype=x.dtype, device=x.device),) * count
        else:
            for state in states:
                if state.dim() not in (1, 2):
                    raise ValueError(f"{self._get_name()}: Expected hidden to be 1D or 2D, got {state.dim()}D instead")
            states = tuple(s if batched else s.unsqueeze(0) for s in states)
        states = _STEP[mode](F.linear(x, self.weight_ih, self.bias_ih), states, self.weight_hh, self.bias_hh)
        return states if batched else tuple(s.squeeze(0) for s in states)

    def extra_repr(self):
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            text += f", nonlinearity={self.nonlinearity}"
        return text


class RNNCell(RNNCellBase):
    """One step of :class:`RNN`: (N, in), (N, hidden) -> (N, hidden)."""

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input, hx=None):
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self._step("RNN_" + self.nonlinearity.upper(), input, None if hx is None else (hx,))[0]


class LSTMCell(RNNCellBase):
    """One step of :class:`LSTM`: (N, in), ((N, hidden), (N, hidden)) -> the new pair."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input, hx=None):
        return self._step("LSTM", input, hx)


class GRUCell(RNNCellBase):
    """One step of :class:`GRU`: (N, in), (N, hidden) -> (N, hidden)."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input, hx=None):
        return self._step("GRU", input, None if hx is None else (hx,))[0]
