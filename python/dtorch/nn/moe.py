"""Mixtures of experts: a router sends each token to a few of many small feed-forward networks.

    moe = nn.MoE(512, 1024, n_experts=8, top_k=2)
    y = moe(x)                                  # x (…, 512)
    loss = criterion(y) + 0.01 * moe.aux_loss   # keeps the experts evenly used

Every token reaches every expert that it chose, unless a capacity is set. How many tokens an expert gets is known on the devices only: nothing here waits
for it, the sizes of the products are tensors (see ``F.grouped_mm``).

On a mesh: the experts may be cut along one mesh dimension (``ExpertParallel``) and their hidden features along another (``ExpertTensorParallel``); the
tokens may be cut along any. Tokens go to their experts and come back by an all-to-all that carries those rows only which go to another device.
The losses, and what a capacity drops, are those of all tokens together, as on one device. docs/experts.md tells more.
"""

from __future__ import annotations

import math

import dtorch
from dtorch import _C
from dtorch.nn import functional as F
from dtorch.nn import init
from dtorch.nn.modules.linear import Linear
from dtorch.nn.modules.module import Module
from dtorch.nn.parameter import Parameter

__all__ = ["MoE"]

_OPS = _C._ops

# name -> (the engine's activation, is it a gate?)
_ACTIVATIONS = {
    "swiglu": ("silu", True), "geglu": ("gelu", True), "geglu_tanh": ("gelu_tanh", True), "reglu": ("relu", True),
    "silu": ("silu", False), "gelu": ("gelu", False), "gelu_tanh": ("gelu_tanh", False), "relu": ("relu", False),
}  # fmt: skip
_PLAIN = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}


def _activation(name):
    if name not in _ACTIVATIONS:
        raise ValueError(f"MoE(): activation must be one of {sorted(_ACTIVATIONS)}, got {name!r}")
    return _ACTIVATIONS[name]


class Experts(Module):
    """The experts' weights, all experts of a kind in one tensor: gate and up (n_experts, d_model, d_hidden), down (n_experts, d_hidden, d_model)."""

    def __init__(self, d_model, d_hidden, n_experts, activation, device=None, dtype=None):
        super().__init__()
        self.activation, gated = _activation(activation)

        def make(*size):
            return Parameter(dtorch.empty(size, device=device, dtype=dtype))

        if gated:
            self.gate = make(n_experts, d_model, d_hidden)
        else:
            self.register_parameter("gate", None)
        self.up = make(n_experts, d_model, d_hidden)
        self.down = make(n_experts, d_hidden, d_model)
        self.reset_parameters()

    def reset_parameters(self):
        """Uniform in ±1/sqrt(inputs), as Linear's weight."""
        for w in self.parameters():
            bound = 1 / math.sqrt(w.shape[1]) if w.shape[1] else 0
            init.uniform_(w, -bound, bound)

    def forward(self, rows, counts, ep):
        """rows: buffers of rows by receiver, counts: how many of them count (src/ops/expert.h). → what the experts make of them."""
        gate, up, down = (w if w is None or w.dtype == rows.dtype else w.to(rows.dtype) for w in (self.gate, self.up, self.down))
        if gate is None:
            hidden = _OPS._expert_act(_OPS._expert_mm(rows, up, counts, None, None, ep, False), counts, self.activation, ep)
        else:
            hidden = _OPS._expert_glu(*_OPS._expert_mm_pair(rows, gate, up, counts, ep), counts, self.activation, ep)
        return _OPS._expert_mm(hidden, down, counts, None, None, ep, False)

    def extra_repr(self):
        n, d_model, d_hidden = self.up.shape
        return f"{n} experts, d_model={d_model}, d_hidden={d_hidden}, activation={self.activation!r}, gated={self.gate is not None}"


class SharedExperts(Module):
    """Experts that every token goes to: together one feed-forward network."""

    def __init__(self, d_model, d_hidden, activation, device=None, dtype=None):
        super().__init__()
        name, gated = _activation(activation)
        self._act = _PLAIN[name]
        self.gate = Linear(d_model, d_hidden, False, device, dtype) if gated else None
        self.up = Linear(d_model, d_hidden, False, device, dtype)
        self.down = Linear(d_hidden, d_model, False, device, dtype)

    def forward(self, x):
        u = self.up(x)
        return self.down(self._act(u) if self.gate is None else self._act(self.gate(x)) * u)


class MoE(Module):
    """A mixture of experts in place of a feed-forward network: (…, d_model) → (…, d_model).

    Args:
        d_model: size of a token.
        d_hidden: hidden features of one expert.
        n_experts: how many experts.
        top_k: how many of them each token goes to.
        capacity_factor: None: every token reaches all its experts. Else an expert takes at most ``ceil(capacity_factor * tokens * top_k / n_experts)``
            assignments, counted over all tokens of the call on all devices: the first ones in row-major order of the tokens, and of a token's choices from
            the best to the last. What is dropped contributes nothing.
        n_shared: so many further experts of `d_hidden` features that every token goes to; they are added without a weight.
        activation: "swiglu", "geglu", "geglu_tanh", "reglu" (gated, with a third matrix), or "silu", "gelu", "gelu_tanh", "relu".
        score: "softmax" over all experts, or "sigmoid" of each by itself: what tokens are ranked and weighted by.
        normalize: divide a token's top_k weights by their sum.
        route_scale: a factor on the weights.
        jitter: during training the router sees its input times uniform numbers in [1 - jitter, 1 + jitter].
        balance_coef: weight of the load-balancing loss in `aux_loss`.
        z_coef: weight of the router's z-loss in `aux_loss`.
        device, dtype: of the parameters.

    Attributes, of the last call:
        aux_loss: ``balance_coef * balance_loss + z_coef * z_loss``, a 0-dim tensor with history.
        balance_loss: ``n_experts * sum_e f_e P_e``, f_e the share of all assignments that chose expert e (before a capacity drops some) and P_e the mean of
            its score over all tokens: 1 when even (arXiv 2101.03961, equations 4 to 6).
        z_loss: the mean of ``logsumexp(logits) ** 2`` (arXiv 2202.08906, equation 5).
        tokens_per_expert: (n_experts,) int64: how many tokens each expert computed.

    state_dict: ``router.weight`` (n_experts, d_model), ``experts.gate`` and ``experts.up`` (n_experts, d_model, d_hidden), ``experts.down``
    (n_experts, d_hidden, d_model), and ``shared.{gate,up,down}.weight`` of one network of n_shared * d_hidden features.

    The router computes in float32 whatever the dtype of x (in float64 for float64), under autocast too; the experts then compute in autocast's dtype.
    ValueError for sizes and names that are not legal.
    """

    def __init__(
        self, d_model, d_hidden, n_experts, top_k=2, *, capacity_factor=None, n_shared=0, activation="swiglu", score="softmax", normalize=True,
        route_scale=1.0, jitter=0.0, balance_coef=1.0, z_coef=0.0, device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        for name, value, least in (
            ("d_model", d_model, 1),
            ("d_hidden", d_hidden, 1),
            ("n_experts", n_experts, 1),
            ("n_shared", n_shared, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"MoE(): {name} must be an integer of at least {least}, got {value!r}")
        if not isinstance(top_k, int) or not 1 <= top_k <= n_experts:
            raise ValueError(f"MoE(): top_k must be an integer from 1 to n_experts={n_experts}, got {top_k!r}")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"MoE(): capacity_factor must be None or above 0, got {capacity_factor!r}")
        if score not in ("softmax", "sigmoid"):
            raise ValueError(f"MoE(): score must be 'softmax' or 'sigmoid', got {score!r}")
        if not 0 <= jitter < 1:
            raise ValueError(f"MoE(): jitter must be in [0, 1), got {jitter!r}")
        self.d_model, self.d_hidden, self.n_experts, self.top_k = d_model, d_hidden, n_experts, top_k
        self.capacity_factor, self.n_shared, self.score, self.normalize = capacity_factor, n_shared, score, normalize
        self.route_scale, self.jitter, self.balance_coef, self.z_coef = route_scale, jitter, balance_coef, z_coef
        self.router = Linear(d_model, n_experts, False, device, dtype)
        self.experts = Experts(d_model, d_hidden, n_experts, activation, device, dtype)
        self.shared = SharedExperts(d_model, n_shared * d_hidden, activation, device, dtype) if n_shared else None
        self.expert_dim = (
            None  # the mesh dimension that the experts are cut along, by name, or by number where it has none: set by ExpertParallel
        )
        self.aux_loss = self.balance_loss = self.z_loss = self.tokens_per_expert = None

    def __getstate__(self):
        """Copies and pickles leave the last call's results behind: they belong to its graph."""
        return {**self.__dict__, "aux_loss": None, "balance_loss": None, "z_loss": None, "tokens_per_expert": None}

    def extra_repr(self):
        return f"top_k={self.top_k}, capacity_factor={self.capacity_factor}, score={self.score!r}, normalize={self.normalize}"

    def forward(self, x):
        """x (…, d_model) → the same shape and placements."""
        if x.shape[-1:] != (self.d_model,):
            raise RuntimeError(f"MoE: expected tokens of {self.d_model} features in the last dimension, got {tuple(x.shape)}")
        flat = x.dim() == 1  # one token
        x = x.unsqueeze(0) if flat else x
        laid, lanes = x.placements, _Lanes(self, x)
        x = lanes.tokens(x)
        kind = x.device.type
        if dtorch.is_autocast_enabled(kind):
            with dtorch.autocast(
                kind, enabled=False
            ):  # the router keeps its precision, the experts and what travels to them have the lower one
                weight, index = self._route(x)
            x = x if x.dtype == dtorch.float64 else x.to(dtorch.get_autocast_dtype(kind))
        else:
            weight, index = self._route(x)
        rows, slot, known, lane = lanes.send(x, index)
        y = lanes.receive(self.experts(rows, known, lanes.ep), slot, weight, known, lane)
        if self.shared is not None:
            y = y + self.shared(x)
        y = lanes.restore(y, laid)
        return y.squeeze(0) if flat else y

    def _route(self, x):
        """→ (weight, index) (…, top_k); the losses and counts on the way."""
        x = x if x.dtype == dtorch.float64 else x.float()
        if self.training and self.jitter:
            x = x * (dtorch.rand_like(x) * (2 * self.jitter) + (1 - self.jitter))
        w = self.router.weight
        logits = F.linear(x, w if w.dtype == x.dtype else w.to(x.dtype))
        scores = logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()
        weight, index = scores.topk(self.top_k, -1)
        if self.normalize and (self.top_k > 1 or self.score == "sigmoid"):
            weight = weight / weight.sum(-1, keepdim=True).clamp_min(1e-20)
        if self.route_scale != 1:
            weight = weight * self.route_scale
        self._losses(logits, scores, index)
        if self.capacity_factor is not None:
            placements = index.placements
            index = _OPS._expert_limit(index, self.n_experts, self._capacity(index.numel()))
            if placements:
                index = index.redistribute(index.device_mesh, placements)
            self.tokens_per_expert = _OPS._expert_count(index, self.n_experts)
        return weight, index

    def _capacity(self, assignments):
        return math.ceil(self.capacity_factor * assignments / self.n_experts)

    def _losses(self, logits, scores, index):
        self.tokens_per_expert = _OPS._expert_count(index, self.n_experts)
        if index.numel() == 0:
            self.balance_loss = self.z_loss = self.aux_loss = logits.sum() * 0
            return
        dims = tuple(range(scores.dim() - 1))
        share = self.tokens_per_expert.to(scores.dtype) * (1 / index.numel())
        if self.score == "sigmoid":
            scores = scores / scores.sum(-1, keepdim=True).clamp_min(1e-20)
        self.balance_loss = self.n_experts * (share * scores.mean(dims)).sum()
        self.z_loss = logits.logsumexp(-1).square().mean()
        self.aux_loss = self.balance_coef * self.balance_loss
        if self.z_coef:
            self.aux_loss = self.aux_loss + self.z_coef * self.z_loss


class _Lanes:
    """How the tokens of one call lie on the mesh, and the sizes of the buffers that they travel in (src/ops/expert.h)."""

    def __init__(self, moe, x):
        self.moe, self.mesh = moe, x.device_mesh
        self.home = x.device_mesh  # where the result shall lie
        if self.mesh.ndim == 0:
            self.mesh = moe.experts.up.device_mesh
        self.ep = self._expert_dim()
        self.groups = self.mesh.shape[self.ep] if self.ep >= 0 else 1

    def _expert_dim(self):
        name, names = self.moe.expert_dim, self.mesh.mesh_dim_names
        if name is None or self.mesh.ndim == 0:
            return -1
        if isinstance(name, str):
            if not names or name not in names:
                return -1
            name = names.index(name)
        return name if self.mesh.shape[name] > 1 else -1

    def tokens(self, x):
        """x as it is routed: cut by tokens along the experts' mesh dimension, whole along those that cut the experts' features."""
        if self.mesh.ndim == 0:
            return x
        if x.device_mesh.ndim == 0:
            x = x.redistribute(self.mesh, [_C.Replicate()] * self.mesh.ndim)
        up, placements = self.moe.experts.up, list(x.placements)
        cut = list(up.placements) if up.device_mesh == self.mesh else [None] * self.mesh.ndim
        for d, p in enumerate(placements):
            features = isinstance(cut[d], _C.Shard) and cut[d].dim > 0
            by_features = isinstance(p, _C.Shard) and p.dim == x.dim() - 1
            if isinstance(p, _C.Partial) or by_features or (features and d != self.ep):
                placements[d] = _C.Replicate()
            if d == self.ep and not isinstance(placements[d], _C.Shard):
                placements[d] = _C.Shard(0)
        return x if tuple(placements) == tuple(x.placements) else x.redistribute(self.mesh, placements)

    def _local(self, x, skip=-1):
        """At most so many tokens lie on one device; `skip`: as if that mesh dimension cut nothing."""
        sizes = list(x.shape[:-1])
        for d, p in enumerate(x.placements if self.mesh.ndim else ()):
            if isinstance(p, _C.Shard) and d != skip:
                rows = p.split_factor
                sizes[p.dim] = rows * -(-(sizes[p.dim] // rows) // self.mesh.shape[d])
        return math.prod(sizes)

    def send(self, x, index):
        """→ (rows of the experts here, slot, counts that all know, (shards, rows of a sender))."""
        moe, k = self.moe, self.moe.top_k
        shards = math.prod(self.mesh.shape[d] for d, p in enumerate(index.placements) if isinstance(p, _C.Shard) and d != self.ep)
        room = self._local(x) * k
        slot, counts = _OPS._expert_route(index, moe.n_experts, shards, self.groups, room, self.ep)
        rows = _OPS._expert_pack(x, slot, None, shards, self.groups, room, self.ep)
        if self.ep < 0:
            return rows, slot, counts, (shards, room)
        known = list(counts.placements)
        known[self.ep] = _C.Replicate()
        counts = counts.redistribute(self.mesh, known)
        here = -(-moe.n_experts // self.groups)  # experts of a device, at most
        most = min(self._local(x, self.ep) if self._last(x) else math.prod(x.shape[:-1]), self.groups * self._local(x)) * min(k, here)
        if moe.capacity_factor is not None:
            most = min(most, here * moe._capacity(index.numel()))
        return _OPS._expert_exchange(rows, counts, most, self.ep, False), slot, counts, (shards, room)

    def _last(self, x):
        """Does no later mesh dimension cut the tokens' dimension that ep cuts? Then the group's tokens are one chunk."""
        dim = x.placements[self.ep].dim
        return not any(isinstance(p, _C.Shard) and p.dim == dim for p in x.placements[self.ep + 1 :])

    def receive(self, rows, slot, weight, counts, lane):
        if self.ep >= 0:
            rows = _OPS._expert_exchange(rows, counts, lane[1], self.ep, True)
        return _OPS._expert_combine(rows, slot, weight, self.ep)

    def restore(self, y, placements):
        """y as the input lay."""
        if self.mesh.ndim == 0:
            return y
        if self.home.ndim == 0:
            return y.redistribute(self.mesh, [_C.Replicate()] * self.mesh.ndim)
        wanted = [_C.Replicate() if isinstance(p, _C.Partial) else p for p in placements]
        return y if tuple(wanted) == tuple(y.placements) else y.redistribute(self.mesh, wanted)
