"""Optimisers, learning rate schedules and weight averaging."""

from dtorch.optim import lr_scheduler, swa_utils
from dtorch.optim.adam import Adam, AdamW
from dtorch.optim.adaptive import Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop
from dtorch.optim.averaged import ASGD, Rprop
from dtorch.optim.lbfgs import LBFGS
from dtorch.optim.matrix import Adafactor, Muon
from dtorch.optim.optimizer import Optimizer
from dtorch.optim.sgd import SGD

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
    "swa_utils",
]
