"""Normalisation over the batch, and over each sample (instance norm), with running statistics."""

from __future__ import annotations

import dtorch
from dtorch.nn import functional as F
from dtorch.nn import init
from dtorch.nn.modules.module import Module
from dtorch.nn.parameter import Parameter

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"]


class _NormBase(Module):
    """Weight, bias and running statistics (C,), shared by batch and instance normalisation."""

    _version = 2

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, device=None, dtype=None, *, bias=True):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, Parameter(dtorch.empty(num_features, device=device, dtype=dtype)) if wanted else None)
        if track_running_stats:
            self.register_buffer("running_mean", dtorch.zeros(num_features, device=device, dtype=dtype))
            self.register_buffer("running_var", dtorch.ones(num_features, device=device, dtype=dtype))
            self.register_buffer("num_batches_tracked", dtorch.tensor(0, dtype=dtorch.int64, device=device))
        else:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                self.register_buffer(name, None)
        self.reset_parameters()

    def reset_running_stats(self):
        """Running mean 0, variance 1, no batches."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self):
        """Weight 1, bias 0, statistics as at the beginning."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check_input_dim(self, input):
        raise NotImplementedError(f"{type(self).__name__} does not say which inputs it takes")

    def extra_repr(self):
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        key = prefix + "num_batches_tracked"
        if (local_metadata.get("version") or 1) < 2 and self.track_running_stats and key not in state_dict:
            # Files from before the count existed, and state dicts without metadata.
            state_dict[key] = self.num_batches_tracked if self.num_batches_tracked is not None else dtorch.tensor(0, dtype=dtorch.int64)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)


class _BatchNorm(_NormBase):
    """Normalises each channel (dimension 1) over all other dimensions of the batch; `momentum` None averages over all batches."""

    def forward(self, input):
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        own_statistics = self.training or (self.running_mean is None and self.running_var is None)
        # In training without tracking, the running statistics are not to be written.
        tracked = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            own_statistics,
            momentum,
            self.eps,
        )


def _check_dims(input, legal):
    if input.dim() not in legal:
        raise ValueError(f"expected {' or '.join(f'{d}D' for d in legal)} input (got {input.dim()}D input)")


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    def _check_input_dim(self, input):
        _check_dims(input, (2, 3))


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W)."""

    def _check_input_dim(self, input):
        _check_dims(input, (4,))


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, D, H, W)."""

    def _check_input_dim(self, input):
        _check_dims(input, (5,))


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of (N, C, ...). The whole batch counts on any mesh, so it is :class:`BatchNorm1d` to 3d by another name."""

    def __init__(
        self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, process_group=None, device=None, dtype=None
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """Nothing to convert: every batch normalisation already sees the whole batch. Returns `module`."""
        return module
