"""Composite: connectionist temporal classification."""

from __future__ import annotations

import dtorch
import dtorch.nn.functional as F

__all__ = ["ctc_loss"]

_NEVER = -1e30  # the logarithm of an impossible path: finite, so that gradients of sums with it are


def _lengths(lengths, name, most, device):
    """Lengths as an int64 tensor; checked where they are numbers of Python."""
    if isinstance(lengths, dtorch.Tensor):
        return lengths.to(dtorch.int64)
    for n in lengths if isinstance(lengths, (tuple, list)) else [lengths]:
        if n < 0 or (most is not None and n > most):
            raise RuntimeError(f"ctc_loss(): expected {name} to have values from 0 to {most}, got {n}")
    return dtorch.tensor(lengths, dtype=dtorch.int64, device=device)


def _padded_targets(targets, target_lengths, batch):
    """Concatenated targets as (N, longest); waits for the lengths if they are a tensor."""
    lengths = target_lengths.tolist()
    if sum(lengths) != targets.shape[0]:
        raise RuntimeError(f"ctc_loss(): concatenated targets have {targets.shape[0]} entries, target_lengths add up to {sum(lengths)}")
    longest = max(lengths, default=0)
    starts = [sum(lengths[:i]) for i in range(batch)]
    at = [[min(s + i, max(0, targets.shape[0] - 1)) for i in range(longest)] for s in starts]
    if longest == 0:
        return dtorch.zeros((batch, 0), dtype=dtorch.int64, device=targets.device)
    return targets[dtorch.tensor(at, device=targets.device)]


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """Connectionist temporal classification (Graves et al. 2006): minus the logarithm of the probability of all alignments of a target.

    Args:
        log_probs: (T, N, C) or (T, C), logarithms of probabilities, as :func:`log_softmax` gives them.
        targets: class numbers (N, S), padded, or all rows behind each other (then it waits for target_lengths, if they are a tensor);
            (S,) without N.
        input_lengths, target_lengths: (N,) tensors or tuples; numbers without N.
        blank: the number of the class that stands for nothing.
        reduction: "mean" (each divided by its target's length, then over the batch), "sum", "none".
        zero_infinity: a target that does not fit its input gives 0, without gradient, instead of infinity.

    The gradient is PyTorch's: that of ``ctc_loss(log_softmax(x))`` in x, already; going through log_softmax does not change it.
    Raises RuntimeError for shapes and lengths that do not fit.
    """
    if log_probs.dim() not in (2, 3):
        raise RuntimeError(f"ctc_loss(): log_probs must be (T, N, C) or (T, C), got {tuple(log_probs.shape)}")
    if not 0 <= blank < log_probs.shape[-1]:
        raise RuntimeError(f"ctc_loss(): blank must be in label range, 0 to {log_probs.shape[-1] - 1}, got {blank}")
    batched = log_probs.dim() == 3
    lp = log_probs if batched else log_probs.unsqueeze(1)
    T, N, _ = lp.shape
    frames = _lengths(input_lengths, "input_lengths", T, lp.device).reshape(-1)
    labels = _lengths(target_lengths, "target_lengths", targets.shape[-1] if targets.dim() else None, lp.device).reshape(-1)
    for name, t in (("input_lengths", frames), ("target_lengths", labels)):
        if t.shape[0] != N:
            raise RuntimeError(f"ctc_loss(): {name} must be of size batch_size {N}, got {t.shape[0]}")
    targets = targets.to(dtorch.int64)
    if targets.dim() == 1:
        targets = _padded_targets(targets, labels, N) if batched else targets.unsqueeze(0)
    nll = _ctc_rows(lp, targets, frames, labels, blank, zero_infinity)
    if reduction == "mean":
        return (nll / labels.clamp(min=1).to(nll.dtype)).mean()
    if reduction == "sum":
        return nll.sum()
    if reduction != "none":
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return nll if batched else nll[0]


def _ctc_rows(lp, targets, frames, labels, blank, zero_infinity):
    """(N,) losses. alpha[n, s]: the logarithm of the probability of all prefixes that end in entry s of blank, t1, blank, t2, …, blank."""
    T, N, S = lp.shape[0], lp.shape[1], targets.shape[1]
    line = dtorch.stack([dtorch.full_like(targets, blank), targets], 2).reshape(N, 2 * S)
    line = dtorch.cat([line, dtorch.full((N, 1), blank, dtype=line.dtype, device=line.device)], 1)
    used = dtorch.arange(2 * S + 1, device=line.device) <= 2 * labels.unsqueeze(1)
    line = line.masked_fill(~used, blank)  # padding may hold anything
    skip = F.pad((line[:, 2:] != line[:, :-2]) & (line[:, 2:] != blank), (2, 0))[:, : 2 * S + 1]
    said = lp.gather(2, line.unsqueeze(0).expand(T, N, 2 * S + 1))
    first = dtorch.arange(2 * S + 1, device=line.device) < 2
    alpha = said[0].masked_fill(~first, _NEVER) if T else lp.new_full((N, 2 * S + 1), _NEVER)
    for t in range(1, T):
        one, two = F.pad(alpha[:, :-1], (1, 0), value=_NEVER), F.pad(alpha, (2, 0), value=_NEVER)[:, : 2 * S + 1].masked_fill(~skip, _NEVER)
        new = dtorch.stack([alpha, one, two]).logsumexp(0) + said[t]
        alpha = dtorch.where((t < frames).unsqueeze(1), new, alpha)
    last = alpha.gather(1, (2 * labels).unsqueeze(1)).squeeze(1)
    before = alpha.gather(1, (2 * labels - 1).clamp(min=0).unsqueeze(1)).squeeze(1).masked_fill(labels == 0, _NEVER)
    nll = -dtorch.stack([last, before]).logsumexp(0)
    nll = dtorch.where(frames == 0, dtorch.where(labels == 0, 0.0, -_NEVER).to(nll.dtype), nll)
    # PyTorch's gradient has the derivative of sum(exp(log_probs)) too, which is that of a constant for probabilities.
    within = dtorch.arange(T, device=line.device).unsqueeze(1) < frames
    total = (lp.exp().sum(2) * within).sum(0)
    nll = nll + (total - total.detach())
    return nll.masked_fill(nll > -_NEVER / 2, 0.0 if zero_infinity else float("inf"))
