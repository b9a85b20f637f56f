"""L-BFGS: a quasi-Newton method for few parameters and exact gradients. Nocedal & Wright, Numerical Optimization, chapters 3 and 7.

It decides by values (is the gradient small? is the step good?), so each iteration waits for them.
"""

from __future__ import annotations

import dtorch
from dtorch.optim.optimizer import Optimizer, check_lr, check_option, number

__all__ = ["LBFGS"]


def _cubic_minimum(x1, f1, g1, x2, f2, g2, low, high):
    """Where the cubic through two points with values f and slopes g is smallest, within [low, high]."""
    d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
    square = d1 * d1 - g1 * g2
    if square < 0:
        return (low + high) / 2.0
    d2 = square**0.5
    if x1 <= x2:
        at = x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
    else:
        at = x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2))
    return min(max(at, low), high)


class _Point:
    """A step length t along the direction: the loss, the gradient and the slope there."""

    __slots__ = ("grad", "loss", "slope", "t")

    def __init__(self, t, loss, grad, slope):
        self.t, self.loss, self.grad, self.slope = t, loss, grad, slope


def _strong_wolfe(evaluate, start, t, length, tolerance, c1=1e-4, c2=0.9, max_evals=25):
    """A step that decreases the loss enough and flattens the slope enough: bracket, then zoom.

    evaluate(t) -> _Point; start is the point at 0; length is the largest entry of the direction. Returns the point and the evaluations.
    """

    def enough(p):
        return p.loss <= start.loss + c1 * p.t * start.slope

    def flat(p):
        return abs(p.slope) <= -c2 * start.slope

    before, here = start, evaluate(t)
    evals = 1
    while evals < max_evals:
        if not enough(here) or (evals > 1 and here.loss >= before.loss):
            break  # a good step lies between
        if flat(here):
            return here, evals
        if here.slope >= 0:
            break
        low, high = here.t + 0.01 * (here.t - before.t), here.t * 10
        t = _cubic_minimum(before.t, before.loss, before.slope, here.t, here.loss, here.slope, low, high)
        before, here = here, evaluate(t)
        evals += 1
    else:
        return (here if here.loss <= start.loss else start), evals
    low, high = (before, here) if before.loss <= here.loss else (here, before)
    slow = False
    while evals < max_evals and abs(high.t - low.t) * length >= tolerance:
        a, b = min(low.t, high.t), max(low.t, high.t)
        t = _cubic_minimum(low.t, low.loss, low.slope, high.t, high.loss, high.slope, a, b)
        edge = 0.1 * (b - a)
        if min(b - t, t - a) < edge:  # too near an end: once is allowed, unless it is the end itself
            if slow or t >= b or t <= a:
                t = b - edge if abs(t - b) < abs(t - a) else a + edge
                slow = False
            else:
                slow = True
        else:
            slow = False
        here = evaluate(t)
        evals += 1
        if not enough(here) or here.loss >= low.loss:
            high = here
            if high.loss < low.loss:
                low, high = high, low
        else:
            if flat(here):
                return here, evals
            if here.slope * (high.t - low.t) >= 0:
                high = low
            low = here
    return low, evals


class LBFGS(Optimizer):
    """Steps along an approximate Newton direction, from the last `history_size` changes of gradient.

    ``step(closure)`` runs up to `max_iter` iterations; the closure clears the gradients, computes the loss and its gradients and returns
    the loss. `line_search_fn` is None (steps of `lr`) or "strong_wolfe". One parameter group only.
    """

    _numbers = ()

    def __init__(
        self,
        params,
        lr=1,
        max_iter=20,
        max_eval=None,
        tolerance_grad=1e-7,
        tolerance_change=1e-9,
        history_size=100,
        line_search_fn=None,
    ):
        check_lr(lr)
        check_option(line_search_fn in (None, "strong_wolfe"), "only 'strong_wolfe' is supported")
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    def _flat_grad(self):
        parts = []
        for p in self.param_groups[0]["params"]:
            parts.append(dtorch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.detach().reshape(-1))
        return dtorch.cat(parts)

    def _lay_out(self, state, grad):
        """A loaded state lies as the gradient does, so that a resumed run sums in the same order."""

        def like_grad(t):
            return t if t.device_mesh is None or t.placements == grad.placements else t.redistribute(grad.device_mesh, grad.placements)

        if grad.device_mesh is not None:
            for name in ("d", "prev_flat_grad"):
                if name in state:
                    state[name] = like_grad(state[name])
            for name in ("old_dirs", "old_stps"):
                state[name] = [like_grad(t) for t in state.get(name, [])]

    def _move(self, direction, t):
        start = 0
        for p in self.param_groups[0]["params"]:
            p.add_(direction[start : start + p.numel()].view_as(p), alpha=t)
            start += p.numel()

    def _direction(self, state, grad):
        """The two-loop recursion: the approximate inverse Hessian times -grad."""
        q = -grad
        weights = []
        for y, s, rho in zip(reversed(state["old_dirs"]), reversed(state["old_stps"]), reversed(state["ro"]), strict=True):
            weight = s.dot(q) * rho
            q = q - y * weight
            weights.append(weight)
        r = q * state["H_diag"]
        for y, s, rho, weight in zip(state["old_dirs"], state["old_stps"], state["ro"], reversed(weights), strict=True):
            r = r + s * (weight - y.dot(r) * rho)
        return r

    def _remember(self, state, grad, history):
        """Add the last step to the history, if its curvature is positive."""
        y, s = grad - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = float(y.dot(s))
        if curvature <= 1e-10:
            return
        if len(state["old_dirs"]) == history:
            for name in ("old_dirs", "old_stps", "ro"):
                state[name].pop(0)
        state["old_dirs"].append(y)
        state["old_stps"].append(s)
        state["ro"].append(1.0 / curvature)
        state["H_diag"] = curvature / float(y.dot(y))

    def step(self, closure):
        """Up to `max_iter` iterations; returns the loss at the start."""
        with dtorch.no_grad():
            return self._minimize(closure)

    def _minimize(self, closure):
        group = self.param_groups[0]
        lr, tolerance = number(group["lr"]), group["tolerance_change"]
        state = self.state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first_loss = self._loss(closure)
        loss = float(first_loss)
        evals = 1
        state["func_evals"] += 1
        grad = self._flat_grad()
        self._lay_out(state, grad)
        if float(grad.abs().max()) <= group["tolerance_grad"]:
            return first_loss
        for iteration in range(group["max_iter"]):
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                state.update(d=-grad, old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
                t = min(1.0, 1.0 / float(grad.abs().sum())) * lr
            else:
                self._remember(state, grad, group["history_size"])
                state["d"] = self._direction(state, grad)
                t = lr
            direction = state["d"]
            state["prev_flat_grad"], state["prev_loss"] = grad.clone(), loss
            slope = float(grad.dot(direction))
            if slope > -tolerance:
                state["t"] = t
                break
            old_loss = loss
            used = 1
            if group["line_search_fn"] is not None:
                loss, grad, t, used = self._search(closure, direction, t, _Point(0.0, loss, grad, slope), tolerance)
            else:
                self._move(direction, t)
                if iteration != group["max_iter"] - 1:  # the last gradient would not be used
                    loss = float(self._loss(closure))
                    grad = self._flat_grad()
                else:
                    used = 0
            state["t"] = t
            evals += used
            state["func_evals"] += used
            if (
                evals >= group["max_eval"]
                or float(grad.abs().max()) <= group["tolerance_grad"]
                or float(direction.abs().max()) * abs(t) <= tolerance
                or (used and abs(loss - old_loss) < tolerance)
            ):
                break
        return first_loss

    def _search(self, closure, direction, t, start, tolerance):
        """A line search; leaves the parameters at its result: loss, gradient, step length, evaluations."""
        params = self.param_groups[0]["params"]
        origin = [p.clone() for p in params]

        def evaluate(t):
            self._move(direction, t)
            loss = float(self._loss(closure))
            grad = self._flat_grad()
            for p, value in zip(params, origin, strict=True):
                p.copy_(value)
            return _Point(t, loss, grad, float(grad.dot(direction)))

        point, used = _strong_wolfe(evaluate, start, t, float(direction.abs().max()), tolerance)
        self._move(direction, point.t)
        return point.loss, point.grad, point.t, used
