#!/usr/bin/env python3
"""Writes the model vectors of this directory from the float64 NumPy reference of the model family.

    python3 make_vectors.py PATH_TO_REFERENCE.py [OUTPUT_DIRECTORY]

One JSON file per configuration: the configuration itself, the digest of its hash-rule weights, and for several
prompts what the reference computes. Per position a digest of the logits is kept: [argmax, first logit, largest logit,
sum, sum of squares, dot product with cos(i + 1)]; the last position is kept whole.
"""

import hashlib
import importlib.util
import json
import os
import sys

import numpy as np


def load(path):
    spec = importlib.util.spec_from_file_location("reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(a, digits=8):
    return [float(f"{v:.{digits}g}") for v in np.asarray(a, np.float64).ravel()]


def position_digest(row):
    wave = np.cos(np.arange(len(row)) + 1.0)
    return [int(row.argmax())] + numbers([row[0], row.max(), row.sum(), (row ** 2).sum(), row @ wave])


def state_digest(cfg, state):
    out = {}
    for i, s in enumerate(state):
        if "S" in s and "kda_sumsq" not in out:
            out["kda_sumsq"] = float((s["S"] ** 2).sum())
            out["conv_sum"] = float(sum(c.sum() for c in s["conv"]))
        if "latent" in s and "mla_sumsq" not in out:
            out["mla_sumsq"] = float((s["latent"] ** 2).sum())
    return {k: float(f"{v:.10g}") for k, v in out.items()}


def prompt_ids(ref, cfg, name, n):
    """Ids below the special ones, the first one fixed."""
    return [1] + [int(v % np.uint64(cfg.vocab - 16)) for v in ref.stream64(1, "prompt." + name, n - 1)]


def run_prompt(ref, cfg, model, ids, rows=None):
    x = model.embed(ids)
    if rows is not None:
        x = ref.splice_media(cfg, ids, x, rows)
    state = model.new_state()
    logits = model.forward(x, state, kda_mode="chunked")
    return {"ids": ids, "positions": [position_digest(r) for r in logits], "last": numbers(logits[-1]),
            "state": state_digest(cfg, state)}


def image_case(ref, cfg, model, name, h, w, frames):
    p = cfg.vision["patch_size"]
    pixels = (ref.stream64(5, name, h * w * 3) & np.uint64(255)).astype(np.uint8).reshape(h, w, 3)
    patches, grid = ref.patchify(pixels, p)
    clip = np.concatenate([patches * (0.5 ** f) for f in range(frames)])
    rows = ref.vision_encode(cfg, model.W, clip, (frames,) + grid[1:])
    return {"stream": name, "height": h, "width": w, "frames": frames, "rows": numbers(rows)}, rows


def build(ref, name, raw, lengths, seed=7, images=()):
    cfg = ref.Cfg(raw)
    model = ref.Model(cfg, ref.build_weights(cfg, seed))
    digest = hashlib.sha256(b"".join(n.encode() + np.ascontiguousarray(model.W.raw[n][1]).tobytes()
                                     for n in sorted(model.W.raw))).hexdigest()
    out = {"name": name, "seed": seed, "config": raw, "sha256": digest, "tensors": len(model.W.raw),
           "prompts": [run_prompt(ref, cfg, model, prompt_ids(ref, cfg, name, n)) for n in lengths]}
    if images:
        cases = [image_case(ref, cfg, model, *i) for i in images]
        out["images"] = [c[0] for c in cases]
        rows = np.concatenate([c[1] for c in cases])
        ids = [1]
        for _, r in cases:
            ids += [9, 8] + [cfg.media_id] * len(r)
        out["media_prompt"] = run_prompt(ref, cfg, model, ids + [7, 6, 5], rows)
    return out, cfg, model


def golden(ref, out, cfg, model):
    ids = [250, 17, 3, 99, 200, 42, 42, 5, 128, 77, 31, 64]
    out["prompts"].append(run_prompt(ref, cfg, model, ids))
    out["golden"] = {"prompt": len(out["prompts"]) - 1, "greedy": ref.greedy(model, ids, 16)}


def biased(ref, raw):
    """The same model with experts weighed by their biased scores."""
    plain = ref.route

    def route(cfg, logits, bias):
        ids, _ = plain(cfg, logits, bias)
        score = ref.sigmoid(logits) if cfg.score_fn == "sigmoid" else ref.softmax(logits)
        w = np.take_along_axis(score + bias, ids, -1)
        if cfg.renorm and cfg.topk > 1:
            w = w / (w.sum(-1, keepdims=True) + 1e-20)
        return ids, w * cfg.route_scale

    ref.route = route
    cfg = ref.Cfg(raw)
    model = ref.Model(cfg, ref.build_weights(cfg))
    result = run_prompt(ref, cfg, model, prompt_ids(ref, cfg, "biased", 20))
    ref.route = plain
    return result


def flat(**changes):
    base = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": 64,
        "hidden_size": 40, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "model_max_length": 512, "q_lora_rank": None,
        "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14,
        "mla_use_nope": True, "num_experts": 6, "num_experts_per_token": 2, "num_shared_experts": 1,
        "moe_intermediate_size": 24, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "tie_word_embeddings": False,
    }
    base.update(changes)
    return base


def linear(kda, full, heads, dim, taps, **more):
    return dict({"kda_layers": kda, "full_attn_layers": full, "num_heads": heads, "head_dim": dim,
                 "short_conv_kernel_size": taps}, **more)


def odd_configs():
    yield "one_kda_layer", flat(
        num_hidden_layers=1, attn_res_block_size=1, linear_attn_config=linear([1], [], 3, 12, 3)), [1, 37]
    yield "all_mla", flat(
        num_hidden_layers=4, mla_use_output_gate=True, attn_res_block_size=2, num_experts_per_token=1,
        moe_router_activation_func="softmax", routed_scaling_factor=1.7,
        linear_attn_config=linear([], [1, 2, 3, 4], 1, 8, 4)), [2, 33]
    yield "groups", flat(
        num_hidden_layers=5, num_experts=12, num_expert_group=4, topk_group=2, num_experts_per_token=4,
        moe_layer_freq=2, routed_expert_hidden_size=28, q_lora_rank=18, moe_renormalize=False,
        hidden_act="situ", activation_situ_beta=3.0,
        linear_attn_config=linear([2, 4, 5], [1, 3], 2, 24, 2, use_full_rank_gate=True,
                                  gate_lower_bound=-2.5)), [3, 70]
    text = flat(
        num_hidden_layers=7, hidden_size=72, num_attention_heads=5, kv_lora_rank=36, q_lora_rank=30,
        routed_expert_hidden_size=96, latent_moe_use_norm=True, moe_intermediate_size=32,
        num_shared_experts=3, attn_res_block_size=3, mla_use_output_gate=True, hidden_act="situ",
        activation_situ_beta=4.0, activation_situ_linear_beta=25.0, first_k_dense_replace=2,
        quantization_config={"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
        linear_attn_config=linear([1, 3, 4, 6], [2, 5, 7], 5, 20, 5, gate_lower_bound=-5.0))
    yield "odd_k3", {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
                     "text_config": text}, [5, 90]


def main():
    ref = load(sys.argv[1])
    where = sys.argv[2] if len(sys.argv) > 2 else os.path.dirname(os.path.abspath(__file__))

    def write(out):
        with open(os.path.join(where, out["name"] + ".json"), "w") as f:
            json.dump(out, f, separators=(",", ":"))
            f.write("\n")

    raw = ref.tiny_k3_config()
    pictures = [("image", 24, 16, 1), ("native", 32, 32, 1), ("clip", 16, 24, 3)]
    out, cfg, model = build(ref, "tiny_k3", raw, [1, 7, 64, 65, 150], images=pictures)
    golden(ref, out, cfg, model)
    write(out)
    raw = ref.tiny_linear_config()
    out, cfg, model = build(ref, "tiny_linear", raw, [1, 7, 64, 65, 150])
    golden(ref, out, cfg, model)
    out["biased"] = biased(ref, raw)
    write(out)
    for name, raw, lengths in odd_configs():
        write(build(ref, name, raw, lengths)[0])


if __name__ == "__main__":
    main()
