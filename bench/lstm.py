"""How long does a training step of the classic LSTM language model take? Forward, backward, gradients clipped, SGD; milliseconds.

    lstm.py [HIDDEN] [THREADS] [LAYERS STEPS BATCH VOCABULARY] [lstm|cells]

The word model of Zaremba et al. (2014): embedding, two layers of 200, 650 or 1,500, 35 steps of 20 sequences, 10,000 words; the state is carried from
step to step without its history. `cells`: one layer after the other in a Python loop over nn.LSTMCell, as people write it themselves.
"""

import os
import statistics
import sys
import time

H, THREADS, L, T, B, V = (int(a) for a in (sys.argv[1:7] + ["650", "1", "2", "35", "20", "10000"][len(sys.argv) - 1 :]))
CELLS = len(sys.argv) > 7 and sys.argv[7] == "cells"
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))

from common import multiply_speed, show, torch  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, H), nn.Linear(H, V)
        if CELLS:
            self.cells = nn.ModuleList(nn.LSTMCell(H, H) for _ in range(L))
        else:
            self.lstm = nn.LSTM(H, H, L)

    def forward(self, ids, targets, state):
        x = self.embed(ids)
        if CELLS:
            state, outs = list(state), []
            for step in x.unbind(0):
                for i, cell in enumerate(self.cells):
                    state[i] = cell(step, state[i])
                    step = state[i][0]
                outs.append(step)
            y = torch.stack(outs)
        else:
            y, state = self.lstm(x, state)
        return F.cross_entropy(self.head(y).view(-1, V), targets.view(-1)), state

    def start(self):
        zeros = lambda *shape: torch.zeros(*shape)  # noqa: E731
        return [(zeros(B, H), zeros(B, H)) for _ in range(L)] if CELLS else (zeros(L, B, H), zeros(L, B, H))


def detached(state):
    return tuple(detached(s) for s in state) if isinstance(state, tuple | list) else state.detach()


def main():
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = Model()
    ids, targets = torch.randint(0, V, (T, B)), torch.randint(0, V, (T, B))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state, times, busy = model.start(), [], []
    for _ in range(int(os.environ.get("STEPS", "12"))):
        start, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss, state = model(ids, targets, detached(state))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    limit = 6 * T * B * (L * 8 * H * H + H * V) / multiply_speed()
    name = f"LSTM, {L} layers of {H}{', loop over cells' if CELLS else ''}, {THREADS} threads"
    show(name + ": step", statistics.median(times[3:]) * 1e3, "ms", limit * 1e3)
    show(name + ": processor time", statistics.median(busy[3:]) * 1e3, "ms")


main()
