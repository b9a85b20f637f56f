"""State dictionaries of modules: saving, loading, and the hooks around both. A part of :class:`Module`."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import dtorch
from dtorch import Tensor
from dtorch.nn.parameter import Parameter
from dtorch.utils.hooks import RemovableHandle

_EXTRA = "_extra_state"


class _IncompatibleKeys(tuple):
    """``(missing_keys, unexpected_keys)``: what ``load_state_dict`` returns."""

    __slots__ = ()

    def __new__(cls, missing_keys, unexpected_keys):
        return tuple.__new__(cls, (missing_keys, unexpected_keys))

    missing_keys = property(lambda self: self[0])
    unexpected_keys = property(lambda self: self[1])

    def __repr__(self):
        if not self[0] and not self[1]:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self[0]}, unexpected_keys={self[1]})"


def _quoted(keys):
    return ", ".join(f'"{k}"' for k in keys)


class StateMixin:
    """Everything of :class:`Module` that deals with state dictionaries."""

    _version = 1

    def get_extra_state(self):
        """Extra state for the state dictionary; override together with :meth:`set_extra_state`."""
        raise RuntimeError("Reached a code path in Module.get_extra_state() that should never be called.")

    def set_extra_state(self, state):
        """Take what :meth:`get_extra_state` gave."""
        raise RuntimeError("Reached a code path in Module.set_extra_state() that should never be called.")

    def _has_extra(self, method):
        return getattr(type(self), method) is not getattr(StateMixin, method)

    # ---- saving

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, param in self._parameters.items():
            if param is not None:
                destination[prefix + name] = param if keep_vars else param.detach()
        for name, buf in self._buffers.items():
            if buf is not None and name not in self._non_persistent_buffers_set:
                destination[prefix + name] = buf if keep_vars else buf.detach()
        if self._has_extra("get_extra_state"):
            destination[prefix + _EXTRA] = self.get_extra_state()

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """All parameters and persistent buffers of this module and its children, by their full names.

        The tensors share storage with the module's; with ``keep_vars`` they are the parameters themselves, not detached.
        """
        if args:
            given = dict(zip(("destination", "prefix", "keep_vars"), args, strict=False))
            destination = given.get("destination", destination)
            prefix = given.get("prefix", prefix)
            keep_vars = given.get("keep_vars", keep_vars)
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        local_metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local_metadata
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=prefix + name + ".", keep_vars=keep_vars)
        for hook, public in list(self._state_dict_hooks.values()):
            result = hook(self, destination, prefix, local_metadata)
            if public:
                if result is not None:
                    raise RuntimeError("state_dict post-hook must return None")
            elif result is not None:
                destination = result
        return destination

    def register_state_dict_post_hook(self, hook):
        """Call ``hook(module, state_dict, prefix, local_metadata)`` after this module's ``state_dict``; it may change the dictionary."""
        return self._add_hook(self._state_dict_hooks, (hook, True))

    def _register_state_dict_hook(self, hook):
        return self._add_hook(self._state_dict_hooks, (hook, False))

    def register_state_dict_pre_hook(self, hook):
        """Call ``hook(module, prefix, keep_vars)`` before this module's ``state_dict``."""
        return self._add_hook(self._state_dict_pre_hooks, hook)

    # ---- loading

    def register_load_state_dict_pre_hook(self, hook):
        """Call ``hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)`` before loading."""
        return self._add_hook(self._load_state_dict_pre_hooks, (hook, True))

    def _register_load_state_dict_pre_hook(self, hook, with_module=False):
        return self._add_hook(self._load_state_dict_pre_hooks, (hook, with_module))

    def register_load_state_dict_post_hook(self, hook):
        """Call ``hook(module, incompatible_keys)`` after loading; it may change the two lists."""
        return self._add_hook(self._load_state_dict_post_hooks, hook)

    @staticmethod
    def _add_hook(table, entry):
        handle = RemovableHandle(table)
        table[handle.id] = entry
        return handle

    def _load_one(self, key, name, param, value, assign, error_msgs):
        """Copy (or with `assign` put) one entry into `param`; a problem becomes a line in `error_msgs`."""
        if not isinstance(value, Tensor):
            error_msgs.append(
                f'While copying the parameter named "{key}", expected dtorch.Tensor or Tensor-like object from checkpoint '
                f"but received {type(value)}"
            )
            return
        if param.dim() == 0 and value.dim() == 1 and value.shape[0] == 1:
            value = value[0]  # scalars were saved with shape (1,) once
        if tuple(value.shape) != tuple(param.shape):
            error_msgs.append(
                f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
                f"the shape in current model is {param.shape}."
            )
            return
        try:
            if assign:
                if isinstance(param, Parameter) and not isinstance(value, Parameter):
                    value = Parameter(value, requires_grad=param.requires_grad)
                setattr(self, name, value)
            else:
                with dtorch.no_grad():
                    param.copy_(value)  # into a sharded parameter too: redistribution is implied
        except Exception as e:
            error_msgs.append(
                f'While {"setting" if assign else "copying"} the parameter named "{key}", whose dimensions in the model are '
                f"{param.shape} and whose dimensions in the checkpoint are {value.shape}, an exception occurred : {e.args}."
            )

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        for hook, with_module in list(self._load_state_dict_pre_hooks.values()):
            args = (state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
            hook(self, *args) if with_module else hook(*args)
        buffers = ((k, b) for k, b in self._buffers.items() if k not in self._non_persistent_buffers_set)
        own = {k: v for k, v in itertools.chain(self._parameters.items(), buffers) if v is not None}
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        for name, param in own.items():
            key = prefix + name
            if key in state_dict:
                self._load_one(key, name, param, state_dict[key], assign, error_msgs)
            elif strict:
                missing_keys.append(key)
        extra_key = prefix + _EXTRA
        if self._has_extra("set_extra_state"):
            if extra_key in state_dict:
                self.set_extra_state(state_dict[extra_key])
            elif strict:
                missing_keys.append(extra_key)
        elif strict and extra_key in state_dict:
            unexpected_keys.append(extra_key)
        if strict:
            for key in state_dict:
                if key.startswith(prefix) and key != extra_key:
                    head, *rest = key[len(prefix) :].split(".", 1)
                    if rest:
                        if head not in self._modules:
                            unexpected_keys.append(key)
                    elif head not in own:
                        unexpected_keys.append(key)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copy the tensors of `state_dict` into this module and its children.

        Args:
            state_dict: full names to tensors.
            strict: whether names that are missing or not expected are errors.
            assign: put the given tensors in place of the module's own instead of copying into these.

        Returns:
            ``(missing_keys, unexpected_keys)``.

        Raises:
            RuntimeError: shapes differ, or (when strict) names do.
        """
        if not hasattr(state_dict, "keys"):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        missing, unexpected, errors = [], [], []
        metadata = getattr(state_dict, "_metadata", None)
        state_dict = OrderedDict(state_dict)
        if metadata is not None:
            state_dict._metadata = metadata

        def load(module, local, prefix):
            local_metadata = {} if metadata is None else dict(metadata.get(prefix[:-1], {}))
            if assign:
                local_metadata["assign_to_params_buffers"] = True
            module._load_from_state_dict(local, prefix, local_metadata, True, missing, unexpected, errors)
            for name, child in module._modules.items():
                if child is not None:
                    start = prefix + name + "."
                    load(child, {k: v for k, v in local.items() if k.startswith(start)}, start)
            for hook in list(module._load_state_dict_post_hooks.values()):
                if hook(module, _IncompatibleKeys(missing, unexpected)) is not None:
                    raise RuntimeError("a load_state_dict post-hook must return None: change the lists it is given in place")

        load(self, state_dict, "")
        if strict:
            if missing:
                errors.insert(0, f"Missing key(s) in state_dict: {_quoted(missing)}. ")
            if unexpected:
                errors.insert(1 if missing else 0, f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
        if errors:
            lines = "\n\t".join(errors)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{lines}")
        return _IncompatibleKeys(missing, unexpected)
