"""How far the simulation is from what is measured, and what it says of clusters.

    python -m dtorch calibrate && python bench/simulate.py cpu       # steps of this machine, 1 and 2 devices of one thread, against the same simulated
    python bench/simulate.py clusters                                # published runs on A100 and H100 against the same simulated
    python bench/simulate.py llama [--dp 16] [--micro 16]            # 70 B parameters, TP 8 x PP 8 x DP: the controller's cost and this process's memory

"cpu" measures processor time a device (the least of several steps): with one thread a device it is the step's time where nothing else runs, and other work on
the machine disturbs it little.
"""

import argparse
import contextlib
import resource
import time

import dtorch as torch
from dtorch import models, nn
from dtorch._calibrate import processor_time
from dtorch.models import distribute_batch, next_token_loss, parallelize

F = nn.functional


# ---- steps of this machine ------------------------------------------------------------------------------------------------------------------
def gpt(width, layers, batch, context, devices, mode, zero=0):
    """A GPT-2 of some size; mode "dp" cuts the batch, "tp" the weights, "pp" the layers (four micro-batches)."""
    config = models.GPT2Config(vocab_size=512, n_positions=context, n_embd=width, n_layer=layers, n_head=max(1, width // 64))

    def make():
        model = models.GPT2(config)
        mesh = torch.init_device_mesh("cpu", (devices,), mesh_dim_names=(mode,)) if devices > 1 else None
        if mesh:
            parallelize(model, mesh, zero=zero)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        parts = 4 if mode == "pp" else 1
        chunks = torch.randint(0, 512, (batch, context)).chunk(parts)
        chunks = [distribute_batch(mesh, x) for x in chunks] if mesh else chunks

        def step():
            for x in chunks:
                (next_token_loss(model(x), x) / parts).backward()
            opt.step()
            opt.zero_grad()

        return step

    return make


def lstm(width, layers, batch, context, devices):
    """A language model of LSTM layers."""

    def make():
        table, net, head = nn.Embedding(1000, width), nn.LSTM(width, width, layers), nn.Linear(width, 1000)
        mesh = torch.init_device_mesh("cpu", (devices,), mesh_dim_names=("dp",)) if devices > 1 else None
        model = nn.ModuleList([table, net, head])
        if mesh:
            parallelize(model, mesh)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randint(0, 1000, (batch, context))
        x = distribute_batch(mesh, x, sequence_dim=None) if mesh else x

        def step():
            y, _ = net(table(x).transpose(0, 1))
            F.cross_entropy(head(y).reshape(-1, 1000), x.transpose(0, 1).reshape(-1)).backward()
            opt.step()
            opt.zero_grad()

        return step

    return make


def mlp(width, batch, devices):
    def make():
        model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU(), nn.Linear(width, width))
        mesh = torch.init_device_mesh("cpu", (devices,), mesh_dim_names=("dp",)) if devices > 1 else None
        if mesh:
            parallelize(model, mesh)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        x = torch.randn(batch, width)
        x = distribute_batch(mesh, x, sequence_dim=None) if mesh else x

        def step():
            model(x).square().mean().backward()
            opt.step()
            opt.zero_grad()

        return step

    return make


def resnet(batch, devices):
    def make():
        model = models.ResNet(models.ResNetConfig.preset("18-cifar"))
        mesh = torch.init_device_mesh("cpu", (devices,), mesh_dim_names=("dp",)) if devices > 1 else None
        if mesh:
            parallelize(model, mesh)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
        if mesh:
            x, y = distribute_batch(mesh, x, y, sequence_dim=None)

        def step():
            F.cross_entropy(model(x), y).backward()
            opt.step()
            opt.zero_grad()

        return step

    return make


# (what, devices, threads of all, how it is made). Those of one device come first: a second one shares the threads from its first use on.
CPU = [
    ("GPT 0.9 M, batch 8 x 128", 1, 1, gpt(128, 4, 8, 128, 1, "dp")),
    ("GPT 4.8 M, batch 8 x 256", 1, 1, gpt(256, 6, 8, 256, 1, "dp")),
    ("GPT 21 M, batch 4 x 256", 1, 1, gpt(512, 6, 4, 256, 1, "dp")),
    ("MLP 1024, batch 256", 1, 1, mlp(1024, 256, 1)),
    ("MLP 256, batch 64", 1, 1, mlp(256, 64, 1)),
    ("LSTM 2 x 200, batch 20 x 35", 1, 1, lstm(200, 2, 20, 35, 1)),
    ("LSTM 2 x 650, batch 20 x 35", 1, 1, lstm(650, 2, 20, 35, 1)),
    ("ResNet-18, 32 x 32, batch 16", 1, 1, resnet(16, 1)),
    ("ResNet-18, 32 x 32, batch 4", 1, 1, resnet(4, 1)),
    ("GPT 4.8 M, batch 8 x 256", 1, 2, gpt(256, 6, 8, 256, 1, "dp")),
    ("MLP 1024, batch 256", 1, 2, mlp(1024, 256, 1)),
    ("LSTM 2 x 650, batch 20 x 35", 1, 2, lstm(650, 2, 20, 35, 1)),
    ("ResNet-18, 32 x 32, batch 16", 1, 2, resnet(16, 1)),
    ("GPT 4.8 M, data parallel", 2, 2, gpt(256, 6, 8, 256, 2, "dp")),
    ("GPT 4.8 M, tensor parallel", 2, 2, gpt(256, 6, 8, 256, 2, "tp")),
    ("GPT 4.8 M, ZeRO-3", 2, 2, gpt(256, 6, 8, 256, 2, "dp", zero=3)),
    ("GPT 4.8 M, pipeline, 4 micro-batches", 2, 2, gpt(256, 6, 8, 256, 2, "pp")),
    ("GPT 21 M, data parallel", 2, 2, gpt(512, 6, 4, 256, 2, "dp")),
    ("MLP 1024, data parallel", 2, 2, mlp(1024, 256, 2)),
    ("LSTM 2 x 650, data parallel", 2, 2, lstm(650, 2, 20, 35, 2)),
    ("ResNet-18, batch 16, data parallel", 2, 2, resnet(16, 2)),
]


def measured(make, threads, steps=6):
    """Processor seconds of a step for each of the threads that share it."""
    torch.manual_seed(0)
    step = make()
    took = []
    for _ in range(steps):
        torch.synchronize()
        begin = processor_time()
        step()
        torch.synchronize()
        took.append((processor_time() - begin) / threads)
    return min(took[2:])


def simulated(make, devices):
    """Virtual seconds of a step in which a device works: who waits for others takes no processor time either."""
    with torch.simulate("cpu", devices) as sim:
        step = make()
        for _ in range(4):
            step()
    s = sim.report().step()
    return s.seconds * (1 - s.bubble)


def cpu():
    print(f"{'step':36}  devices  threads  measured     simulated    off by")
    for name, devices, threads, make in CPU:
        torch.set_num_threads(threads)
        real, fake = measured(make, threads), simulated(make, devices)
        print(
            f"{name:36}  {devices:7}  {threads:7}  {1e3 * real:8.2f} ms  {1e3 * fake:8.2f} ms  {100 * (fake / real - 1):+6.1f} %",
            flush=True,
        )


# ---- published runs -------------------------------------------------------------------------------------------------------------------------
# Megatron: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", arXiv 2104.04473, table 1: A100, sequences of
# 2048, vocabulary 51200, activations recomputed, achieved TFLOP/s a GPU (recomputation counted). Llama 3: arXiv 2407.21783, table 4: H100, BF16 MFU.
# Data parallelism is 2 here, whatever it was there: what a replica does is the same. Columns: hidden, layers, heads, TP, PP, sequences a replica and step.
MEGATRON = [
    ("GPT 1.7 B", (2304, 24, 24, 1, 1, 16), 137),
    ("GPT 7.5 B", (4096, 36, 32, 4, 1, 16), 142),
    ("GPT 18.4 B", (6144, 40, 48, 8, 1, 32), 135),
    ("GPT 39.1 B", (8192, 48, 64, 8, 2, 48), 138),
    ("GPT 76.1 B", (10240, 60, 80, 8, 4, 56), 140),
]


def train(model, mesh, sequences, micro, context, vocabulary, steps=2, narrow_once=False, **layout):
    """Steps of `sequences` a replica, in micro-batches of `micro`; returns nothing: the simulation has the times. narrow_once: weights become 16-bit once a
    step, as where they are kept so, else once a micro-batch."""
    parallelize(model, mesh, **layout)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    dp = mesh["dp"].size()
    for _ in range(steps):
        with torch.autocast("cuda", dtype=torch.bfloat16) if narrow_once else contextlib.nullcontext():
            for _ in range(sequences // micro):
                # cut first, then distributed: a chunk of rows that lie on several devices is cut along the other dimension, which is context parallelism
                a = distribute_batch(mesh, torch.randint(0, vocabulary, (micro * dp, context)))
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = next_token_loss(model(a), a)
                (loss * (micro / sequences)).backward()
        opt.step()
        opt.zero_grad()


def untiled(q, k, v, is_causal=True):
    """Attention as it was computed in 2021: scores, probabilities and what dropout leaves of them lie in memory. Scale, mask and softmax were one kernel of
    16-bit operands (section 4.2 of the paper): so the scale goes to the queries here, and nothing is widened."""
    with torch.autocast("cuda", enabled=False):
        p = F.dropout(F.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2), dim=-1), 0.1)
        return p @ v


def megatron_flops(sequences, hidden, layers, context=2048, vocabulary=51200):
    """Of a step, equation 3 of the paper: forward, backward and the forward of the layers once more."""
    return 96 * sequences * context * layers * hidden**2 * (1 + context / (6 * hidden) + vocabulary / (16 * layers * hidden))


def cluster_row(name, hardware, mesh_shape, make, published, peak, flops=None, **run):
    """`flops`: of a replica's step as the publication counts them; None: as the operators do."""
    devices = mesh_shape[0] * mesh_shape[1] * mesh_shape[2]
    unlimited = {**torch._simulate.load_hardware(hardware), "memory": 0}  # the whole model begins on one device here
    with torch.simulate(unlimited, devices) as sim:
        mesh = torch.init_device_mesh("cuda", mesh_shape, mesh_dim_names=("pp", "dp", "tp"))
        train(make(), mesh, **run)
    s = sim.report().step()
    got = flops / (s.seconds * mesh_shape[0] * mesh_shape[2] * 1e12) if flops else s.mfu * peak
    shape = f"TP {mesh_shape[2]} PP {mesh_shape[0]}"
    print(
        f"{name:12}  {shape:10}  {published:9.0f}  {got:9.0f}  {100 * (got / published - 1):+5.0f} %  "
        f"while not idle {got / (1 - s.bubble):4.0f}  bubble {100 * s.bubble:4.1f} %  "
        f"exposed {100 * s.exposed:4.1f} %  step {s.seconds:.2f} s",
        flush=True,
    )


def clusters():
    print("model         mesh        published  simulated  TFLOP/s a device")
    tiled, models.gpt2.F.scaled_dot_product_attention = F.scaled_dot_product_attention, untiled
    for name, (hidden, layers, heads, tp, pp, sequences), published in MEGATRON:

        def make(hidden=hidden, layers=layers, heads=heads):
            config = models.GPT2Config(vocab_size=51200, n_positions=2048, n_embd=hidden, n_layer=layers, n_head=heads, dropout=0.1)
            return recomputed(models.GPT2(config))

        cluster_row(
            name,
            "a100-8x",
            (pp, 2, tp),
            make,
            published,
            312,
            megatron_flops(sequences, hidden, layers),
            sequences=sequences,
            micro=2 if pp == 1 else 1,
            context=2048,
            vocabulary=51200,
            narrow_once=True,
        )

    models.gpt2.F.scaled_dot_product_attention = tiled

    def llama():
        return models.Llama(
            models.LlamaConfig(
                vocab_size=128256, hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128,
                num_key_value_heads=8, max_position_embeddings=8192,
            )
        )  # fmt: skip

    cluster_row(
        "Llama 405 B",
        "h100-8x",
        (16, 2, 8),
        llama,
        430,
        989.4,
        sequences=32,
        micro=1,
        context=8192,
        vocabulary=128256,
        sequence_parallel=True,
    )


def recomputed(model):
    """The same model, whose blocks keep nothing but their inputs. In place: blocks stay where pipelines and plans look for them."""
    from dtorch.utils.checkpoint import checkpoint

    for block in model.h if hasattr(model, "h") else model.layers:
        inner = type(block).forward
        block.forward = lambda *args, _block=block, _inner=inner: checkpoint(_inner, _block, *args, use_reentrant=False)
    return model


# ---- 70 B parameters --------------------------------------------------------------------------------------------------------------------------
def staged_llama(config, layers, mesh):
    """A Llama whose layers are made on their stages: the whole of it would not fit on one device."""
    pp = mesh["pp"]
    model = models.Llama(config)
    for i in range(layers):
        with pp[i * pp.size() // layers]:
            model.layers.append(models.llama.Block(config, model.mlp))
    return model


def llama(dp, micro, tp=8, pp=8, layers=80, context=4096, steps=4):
    config = models.LlamaConfig(
        vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_hidden_layers=0, num_attention_heads=64, num_key_value_heads=8,
        max_position_embeddings=8192, rope_theta=500000.0,
    )  # fmt: skip
    begin = time.time()
    with torch.simulate("h100-8x", tp * pp * dp) as sim:
        mesh = torch.init_device_mesh("cuda", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
        train(
            recomputed(staged_llama(config, layers, mesh)), mesh, micro, 1, context, config.vocab_size, steps=steps, sequence_parallel=True
        )
    print(sim.report())
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{time.time() - begin:.1f} s in all, {sim.report().simulating:.2f} s of them simulating; this process took {rss:.2f} GB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cpu", "clusters", "llama"))
    parser.add_argument("--dp", type=int, default=16)
    parser.add_argument("--micro", type=int, default=16)
    options = parser.parse_args()
    if options.what == "cpu":
        cpu()
    elif options.what == "clusters":
        clusters()
    else:
        llama(options.dp, options.micro)
