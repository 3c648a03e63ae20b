"""Logits of weft and llama.cpp on the same weights: prompts of several lengths, then decoded tokens one by one.

Random models route on thin margins: where rounding differs in the third digit, other experts are chosen and the logits have
nothing in common. So both sides compute with weights that neither rounds (llama.cpp reads a file in F32, weft's exact kernels
widen BF16 and MXFP4 as they go), with f32 activations and caches, and llama.cpp without flash attention, which sums in F16
(2e-4 of the largest logit, and up to 4e-3 where a router is near a tie). What remains is the order of sums.
"""
import array
import os
import pathlib
import tempfile

import models
from engines import machine_lock
from ratios import relative_difference

# In units of the largest logit. F32 sums in another order were seen to differ by up to 5e-6 through all layers; F16 sums in the
# attention alone, the smallest error tried that is more than that, give 4e-5 to 7e-4.
TOLERANCE = 2e-5
PROMPTS = ((1, 4), (2, 0), (7, 8), (33, 4), (64, 0), (65, 8), (130, 16), (300, 4), (700, 2))  # prompt tokens, then decoded ones
MODELS = (("mini", "released"), ("mini", "f32"), ("linear-mini", "released"), ("linear-mini", "f32"))
EXACT_KERNELS = "avx512"  # newer variants round activations to BF16
PEER_LATENT_EPS = "1e-5"  # llama.cpp has one epsilon for all norms


def token_ids(count, vocab, seed):
    state, out = seed * 2 + 1, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 33) % vocab)
    return out


def rows_of(path, vocab):
    values = array.array("f")
    values.frombytes(pathlib.Path(path).read_bytes())
    return [values[i:i + vocab] for i in range(0, len(values), vocab)]


def compare(weft, peer, work):
    """Prints one line per prompt; returns the largest difference."""
    worst, vocab = 0.0, weft.about["vocab"]
    for seed, (count, steps) in enumerate(PROMPTS):
        ids = " ".join(map(str, token_ids(count + steps, vocab, seed)))
        rows = []
        for engine in (weft, peer):
            path = os.path.join(work, f"{engine.name}.f32")
            engine.ask(f"steps-file {path} {steps} {ids}")
            rows.append(rows_of(path, vocab))
        if len(rows[0]) != len(rows[1]) or len(rows[0]) != steps + 1:
            raise ValueError(f"{len(rows[0])} rows of logits against {len(rows[1])}, expected {steps + 1}")
        found = max(relative_difference(a, b) for a, b in zip(*rows))
        print(f"  prompt of {count:3} tokens, {steps:2} decoded: largest difference {found:.2e}", flush=True)
        worst = max(worst, found)
    return worst


def run(args, start_weft, start_peer):
    """Returns the exit status."""
    chosen = [(args.model, "as it is")] if args.model else [m for m in MODELS if args.preset in (None, m[0])]
    overall = 0.0
    for name, dtype in chosen:
        folder = pathlib.Path(name) if args.model else models.preset(args.weft_bench, args.cache, name, dtype)
        gguf = models.converted(args.cache, folder, f32=True)
        print(f"{name} ({dtype}):", flush=True)
        with machine_lock(args.lock), tempfile.TemporaryDirectory() as work:
            weft = start_weft(folder, max(map(sum, PROMPTS)), ["--isa", args.weft_isa or EXACT_KERNELS, "--set", "cache_dtype=f32",
                                                               "--set", f"mla_lora_norm_eps={PEER_LATENT_EPS}"])
            peer = start_peer(gguf, ["--cache", "f32", "--flash", "off"])
            try:
                overall = max(overall, compare(weft, peer, work))
            finally:
                weft.close()
                peer.close()
    verdict = "agree" if overall <= TOLERANCE else "DISAGREE"
    print(f"weft and llama.cpp {verdict}: largest difference {overall:.2e} of the largest logit, tolerance {TOLERANCE:g}")
    return 0 if overall <= TOLERANCE else 1
