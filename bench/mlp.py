"""Inference of a small MLP, one row at a time: from the call to the value in the program's hands. One thread; microseconds."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import Case, compiled, is_jax, main, torch  # noqa: E402

WIDTH = 256


def in_jax():
    import jax
    import jax.numpy as jnp
    import numpy as np

    ws = [jax.random.normal(jax.random.PRNGKey(i), s) * 0.05 for i, s in enumerate(((784, WIDTH), (WIDTH, WIDTH), (WIDTH, 10)))]
    x = jnp.ones((1, 784))

    @jax.jit
    def model(ws, x):
        return jax.nn.relu(jax.nn.relu(x @ ws[0]) @ ws[1]) @ ws[2]

    return lambda: np.asarray(model(ws, x))


def in_torch():
    nn = torch.nn
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)).eval()
    model, x = compiled(model), torch.ones(1, 784)

    def call():
        with torch.no_grad():
            model(x).numpy()

    return call


def cases():
    operations = 2 * (784 * WIDTH + WIDTH * WIDTH + WIDTH * 10)
    weights = 4 * (784 * WIDTH + WIDTH * WIDTH + WIDTH * 10)
    return {"MLP 784-256-256-10, batch 1, to numpy": Case(in_jax() if is_jax else in_torch(), "us", operations=operations, moved=weights)}


if __name__ == "__main__":
    main(__file__, cases)
