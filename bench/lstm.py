"""A training step of the classic LSTM language model: forward, backward, gradients clipped, SGD. HIDDEN=200,650 THREADS=1 choose sizes.

The word model of Zaremba et al. (2014): embedding, two layers of 200, 650 or 1,500, 35 steps of 20 sequences, 10,000 words; the state is carried from
step to step without its history. `loop over cells` is one nn.LSTMCell call after the other in Python, as people write it themselves.
"""

import os

THREADS = int(os.environ.get("THREADS", "1"))
SIZES = [int(h) for h in os.environ.get("HIDDEN", "200,650").split(",")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))

from common import Case, main, torch  # noqa: E402

L, T, B, V = 2, 35, 20, 10000


def make_model(H, cells):
    nn, F = torch.nn, torch.nn.functional

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(V, H), nn.Linear(H, V)
            if cells:
                self.cells = nn.ModuleList(nn.LSTMCell(H, H) for _ in range(L))
            else:
                self.lstm = nn.LSTM(H, H, L)

        def forward(self, ids, targets, state):
            x = self.embed(ids)
            if cells:
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

    return Model()


def detached(state):
    return tuple(detached(s) for s in state) if isinstance(state, tuple | list) else state.detach()


def training(H, cells):
    torch.manual_seed(0)
    model = make_model(H, cells)
    ids, targets = torch.randint(0, V, (T, B)), torch.randint(0, V, (T, B))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = [(torch.zeros(B, H), torch.zeros(B, H)) for _ in range(L)] if cells else (torch.zeros(L, B, H), torch.zeros(L, B, H))

    def step():
        nonlocal state
        optimizer.zero_grad()
        loss, state = model(ids, targets, detached(state))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        loss.item()

    return step


def cases():
    torch.set_num_threads(THREADS)
    table = {}
    for H in SIZES:
        operations = 6 * T * B * (L * 8 * H * H + H * V)
        name = f"LSTM language model, 2 x {H}, {THREADS} thread{'s' * (THREADS > 1)}"
        table[name] = Case(training(H, False), operations=operations)
        table[name + ", loop over cells"] = Case(training(H, True), operations=operations)
    return table


if __name__ == "__main__":
    main(__file__, cases)
