"""`python -m nsa.generate CHECKPOINT --prompt TEXT`: what has the model learned to say?

    python -m nsa.generate RUN_DIR --prompt "def main(" --bytes 200
    python -m nsa.generate RUN_DIR/checkpoints/step_000040 --temperature 0 --json

Continues a prompt with the weights of a checkpoint, or of the newest checkpoint of a run's folder.
The manifest is checked first. Bytes are printed as they come; with `--json` one object at the end.
A separator (zero byte: the end of a document) ends the text. Without a prompt it begins a document.
Exit codes: 0 done, 4 bad arguments or a checkpoint that cannot be used.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from nsa.command_line import Arguments, load_trained
from nsa.config import SEPARATOR
from nsa.errors import BadConfig


def main(arguments: list[str] | None = None) -> int:
    """Generate; returns the exit code."""
    try:
        given = _parse(arguments)
        prompt, step, drawn = start_generation(given)
        began, written = time.monotonic(), bytearray()
        for byte in drawn:
            if byte == SEPARATOR[0]:
                break
            written.append(byte)
            if not given.json:
                sys.stdout.buffer.write(bytes([byte]))
                sys.stdout.buffer.flush()
    except BadConfig as error:
        print(f"BadConfig: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed when Python ends
        return 0
    spent_s = time.monotonic() - began
    if given.json:
        told = {
            "checkpoint": str(given.checkpoint),
            "step": step,
            "prompt": prompt.decode("utf-8", "replace"),
            "text": written.decode("utf-8", "replace"),
            "bytes": len(written),
            "bytes_per_s": round(len(written) / spent_s, 2),
        }
        print(json.dumps(told))
    else:
        print()
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Arguments("nsa.generate", __doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint's folder, or a run's")
    parser.add_argument("--prompt", default="", help="text to continue (default: begin a document)")
    parser.add_argument("--bytes", type=int, default=200, help="at most so many (default 200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 = likeliest (default .8)")
    parser.add_argument("--top-k", type=int, help="draw from the k likeliest bytes")
    parser.add_argument("--top-p", type=float, help="draw from the likeliest of this probability")
    parser.add_argument("--seed", type=_seed, default=0, help="same seed, same text (default 0)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", action="store_true", help="one JSON object, no streaming")
    return parser.parse_args(arguments)


def _seed(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"expected a whole number below 2^63, found {text!r}")
    return int(text)


def start_generation(given: argparse.Namespace) -> tuple[bytes, int, Iterator[int]]:
    """The prompt, the step of the checkpoint, and the bytes to come."""
    prompt = given.prompt.encode()
    # torch takes seconds: arguments are refused before it.
    import torch

    from nsa.model.generation import Sampling, generate

    model, snapshot = load_trained(given.checkpoint, given.device)
    device = model.rotation.device
    tokens = torch.tensor([list(prompt or SEPARATOR)], device=device)
    if given.bytes < 1 or tokens.shape[1] + given.bytes > model.rotation.shape[1]:
        room = model.rotation.shape[1] - tokens.shape[1]
        raise BadConfig(f"--bytes must be 1 to {room} after this prompt, not {given.bytes}")
    try:
        sampling = Sampling(temperature=given.temperature, top_k=given.top_k, top_p=given.top_p)
    except ValueError as error:
        raise BadConfig(str(error)) from error
    drawn = generate(
        model,
        tokens,
        given.bytes,
        sampling=sampling,
        generator=torch.Generator(device=device).manual_seed(given.seed),
    )
    return prompt, snapshot.step, (int(byte.item()) for byte in drawn)


if __name__ == "__main__":
    raise SystemExit(main())
