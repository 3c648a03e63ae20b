#!/usr/bin/env python3
"""Converts a Kimi K3 or Kimi-Linear checkpoint (any shape) to GGUF for llama.cpp.

    convert.py MODEL_DIR OUT.gguf [--f32]

No weight changes its value: MXFP4 experts are only rearranged into llama.cpp's blocks, BF16 matrices are copied, F32 stays
F32. Vectors, convolutions and the router become F32, as llama.cpp demands. With --f32 every weight is widened to F32, so
that llama.cpp rounds nothing: the file for comparing logits. Folded, because llama.cpp wants them folded: -exp(A_log), and
the product of each attention residual's norm and projection. Plain Python on purpose; the loops run inside bytes and array.
"""
import argparse
import array
import math
import sys

import gguf
from checkpoint import Checkpoint

MXFP4_BLOCK = 17
FILE_TYPE_F32, FILE_TYPE_BF16, FILE_TYPE_MXFP4 = 0, 32, 38
SIGMOID_ROUTER = 2
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


# --- bytes of one tensor -------------------------------------------------------------------------------------------------

def widen(data):
    """BF16 to F32: the same number with sixteen zero bits behind it."""
    out = bytearray(2 * len(data))
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return out


def as_f32(tensor):
    data = tensor.data()
    if tensor.dtype == "BF16":
        return widen(data)
    if tensor.dtype != "F32":
        raise ValueError(f"{tensor.name}: {tensor.dtype} where a float was expected")
    return data


def floats(tensor):
    values = array.array("f")
    values.frombytes(bytes(as_f32(tensor)))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _nibbles(data, shift, mask):
    """(byte >> shift) & mask for every byte, as one long integer; the mask keeps neighbours out."""
    number = int.from_bytes(data, "little")
    pattern = int.from_bytes(bytes([mask]) * len(data), "little")
    return (number >> shift if shift >= 0 else number << -shift) & pattern


def repack_mxfp4(packed, scales):
    """Checkpoint order to blocks of a scale byte and 16 code bytes.

    In: byte i of a group of 16 holds columns 2i (low nibble) and 2i+1. Out: byte j holds columns j (low) and j+16.
    """
    groups = len(scales)
    if len(packed) != 16 * groups:
        raise ValueError(f"{len(packed)} packed bytes for {groups} scales")
    out = bytearray(MXFP4_BLOCK * groups)
    out[0::MXFP4_BLOCK] = scales
    for i in range(8):
        front, back = packed[i::16], packed[8 + i::16]
        even = _nibbles(front, 0, 0x0F) | _nibbles(back, -4, 0xF0)
        odd = _nibbles(front, 4, 0x0F) | _nibbles(back, 0, 0xF0)
        out[1 + 2 * i::MXFP4_BLOCK] = even.to_bytes(groups, "little")
        out[2 + 2 * i::MXFP4_BLOCK] = odd.to_bytes(groups, "little")
    return out


_DECODED = {}


def _decoded(scale):
    """For one scale byte: the eight bytes of F32 that each packed byte stands for."""
    if scale not in _DECODED:
        if scale == 255:
            raise ValueError("an MXFP4 scale is NaN")
        factor = math.ldexp(1.0, scale - 127)
        pairs = array.array("f")
        for byte in range(256):
            pairs.extend((E2M1[byte & 15] * factor, E2M1[byte >> 4] * factor))
        raw = pairs.tobytes()
        _DECODED[scale] = [raw[8 * b:8 * b + 8] for b in range(256)]
    return _DECODED[scale]


def decode_mxfp4(packed, scales):
    return b"".join(_decoded(scale)[byte] for group, scale in enumerate(scales)
                    for byte in packed[16 * group:16 * group + 16])


def split_kv_b(data, item, heads, key, value, latent):
    """Rows are [head][key rows | value rows]; returns keys as [head][latent][key] and values as [head][value][latent]."""
    row, head = item * latent, item * latent * (key + value)
    keys, values = [], []
    for h in range(heads):
        start = h * head
        part = array.array("H" if item == 2 else "I")
        part.frombytes(data[start:start + key * row])
        keys.extend(part[column::latent].tobytes() for column in range(latent))
        values.append(data[start + key * row:start + head])
    return b"".join(keys), b"".join(values)


# --- the model -----------------------------------------------------------------------------------------------------------

class Conversion:
    """One checkpoint on its way into a gguf.Writer."""

    def __init__(self, checkpoint, f32):
        self.config, self.tensors, self.f32 = checkpoint.config, checkpoint.tensors, f32
        self.k3 = self.config.get("attn_res_block_size") is not None
        self.arch = "kimi-k3" if self.k3 else "kimi-linear"
        self.used, self.out = set(), gguf.Writer()
        self.full = {i - 1 for i in self.config["linear_attn_config"]["full_attn_layers"]}
        self.mxfp4 = any(name.endswith("weight_packed") for name in self.tensors)

    def take(self, name):
        if name not in self.tensors:
            raise ValueError(f"the checkpoint has no tensor {name}")
        self.used.add(name)
        return self.tensors[name]

    def vector(self, target, source, shape=None):
        tensor = self.take(source)
        self.out.tensor(target, gguf.F32, shape or (math.prod(tensor.shape),), lambda: as_f32(tensor))

    def matrix(self, target, source):
        tensor = self.take(source)
        if self.f32 or tensor.dtype == "F32":
            self.out.tensor(target, gguf.F32, tensor.shape, lambda: as_f32(tensor))
        else:
            self.out.tensor(target, gguf.BF16, tensor.shape, tensor.data)

    def product(self, target, norm, proj):
        a, b = self.take(norm), self.take(proj)
        self.out.tensor(target, gguf.F32, (math.prod(a.shape),),
                        lambda: array.array("f", (x * y for x, y in zip(floats(a), floats(b)))).tobytes())

    def experts(self, target, prefix, name):
        """All experts' `name` matrices, one after the other."""
        count = self.config["num_experts"]
        if f"{prefix}0.{name}.weight_packed" in self.tensors:
            parts = [(self.take(f"{prefix}{e}.{name}.weight_packed"), self.take(f"{prefix}{e}.{name}.weight_scale"))
                     for e in range(count)]
            rows, half = parts[0][0].shape
            kind, make = (gguf.F32, decode_mxfp4) if self.f32 else (gguf.MXFP4, repack_mxfp4)
            self.out.tensor(target, kind, (count, rows, 2 * half),
                            lambda: (make(packed.data(), scale.data()) for packed, scale in parts))
            return
        parts = [self.take(f"{prefix}{e}.{name}.weight") for e in range(count)]
        wide = self.f32 or parts[0].dtype == "F32"
        self.out.tensor(target, gguf.F32 if wide else gguf.BF16, (count,) + parts[0].shape,
                        lambda: (as_f32(part) if wide else part.data() for part in parts))

    def run(self):
        self.metadata()
        self.matrix("token_embd.weight", "model.embed_tokens.weight")
        self.matrix("output.weight", "lm_head.weight")
        self.vector("output_norm.weight", "model.norm.weight")
        if self.k3:
            self.product("output_res_score.weight", "model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight")
        for i in range(self.config["num_hidden_layers"]):
            self.layer(i, f"blk.{i}.", f"model.layers.{i}.")
        left = sorted(n for n in self.tensors if n not in self.used and not n.startswith(("vision_tower.", "mm_projector.")))
        if left:
            raise ValueError(f"{len(left)} tensors left over, first {left[0]}")
        return self.out

    def layer(self, i, to, of):
        self.vector(to + "attn_norm.weight", of + "input_layernorm.weight")
        self.vector(to + "ffn_norm.weight", of + "post_attention_layernorm.weight")
        if self.k3:
            for target, source in (("attn_res_score", "self_attention_res"), ("ffn_res_score", "mlp_res")):
                self.product(f"{to}{target}.weight", f"{of}{source}_norm.weight", f"{of}{source}_proj.weight")
        (self.mla if i in self.full else self.kda)(to, of + "self_attn.")
        if i < self.config.get("first_k_dense_replace", 0):
            for part in ("gate", "up", "down"):
                self.matrix(f"{to}ffn_{part}.weight", f"{of}mlp.{part}_proj.weight")
        else:
            self.moe(to, of + "block_sparse_moe.")

    def kda(self, to, of):
        heads, taps = self.config["linear_attn_config"]["num_heads"], self.config["linear_attn_config"]["short_conv_kernel_size"]
        for x in "qkv":
            self.matrix(f"{to}attn_{x}.weight", f"{of}{x}_proj.weight")
            channels = math.prod(self.take(f"{of}{x}_conv1d.weight").shape) // taps
            self.vector(f"{to}ssm_conv1d_{x}.weight", f"{of}{x}_conv1d.weight", (1, channels, 1, taps))
        for target, source in (("ssm_f_a", "f_a_proj"), ("ssm_f_b", "f_b_proj"), ("ssm_beta", "b_proj"), ("attn_output", "o_proj")):
            self.matrix(f"{to}{target}.weight", f"{of}{source}.weight")
        a_log = self.take(of + "A_log")
        self.out.tensor(to + "ssm_a", gguf.F32, (heads,) if self.k3 else (heads, 1),
                        lambda: array.array("f", (-math.exp(v) for v in floats(a_log)[:heads])).tobytes())
        self.vector(to + "ssm_dt.bias", of + "dt_bias")
        self.vector(to + "ssm_norm.weight", of + "o_norm.weight")
        if f"{of}g_proj.weight" in self.tensors:
            self.matrix(to + "ssm_g.weight", of + "g_proj.weight")
        else:
            self.matrix(to + "ssm_g_a.weight", of + "g_a_proj.weight")
            self.matrix(to + "ssm_g_b.weight", of + "g_b_proj.weight")

    def mla(self, to, of):
        if self.config.get("q_lora_rank"):
            self.matrix(to + "attn_q_a.weight", of + "q_a_proj.weight")
            self.vector(to + "attn_q_a_norm.weight", of + "q_a_layernorm.weight")
            self.matrix(to + "attn_q_b.weight", of + "q_b_proj.weight")
        else:
            self.matrix(to + "attn_q.weight", of + "q_proj.weight")
        self.matrix(to + "attn_kv_a_mqa.weight", of + "kv_a_proj_with_mqa.weight")
        self.vector(to + "attn_kv_a_norm.weight", of + "kv_a_layernorm.weight")
        self.kv_b(to, of)
        if self.config.get("mla_use_output_gate"):
            self.matrix(to + "attn_gate.weight", of + "g_proj.weight")
        self.matrix(to + "attn_output.weight", of + "o_proj.weight")

    def kv_b(self, to, of):
        c = self.config
        heads, key, value, latent = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        tensor = self.take(of + "kv_b_proj.weight")
        wide = self.f32 or tensor.dtype == "F32"
        kind, item = (gguf.F32, 4) if wide else (gguf.BF16, 2)

        def part(which):
            data = bytes(as_f32(tensor)) if wide else tensor.data()
            return split_kv_b(data, item, heads, key, value, latent)[which]

        self.out.tensor(to + "attn_k_b.weight", kind, (heads, latent, key), lambda: part(0))
        self.out.tensor(to + "attn_v_b.weight", kind, (heads, value, latent), lambda: part(1))

    def moe(self, to, of):
        gate = self.take(of + "gate.weight")
        self.out.tensor(to + "ffn_gate_inp.weight", gguf.F32, gate.shape, lambda: as_f32(gate))
        self.vector(to + "exp_probs_b.bias", of + "gate.e_score_correction_bias")
        for target, source in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
            self.experts(f"{to}ffn_{target}_exps.weight", of + "experts.", source)
        if self.config.get("num_shared_experts"):
            for part in ("gate", "up", "down"):
                self.matrix(f"{to}ffn_{part}_shexp.weight", f"{of}shared_experts.{part}_proj.weight")
        if self.config.get("routed_expert_hidden_size"):
            self.matrix(to + "ffn_routed_down.weight", of + "routed_expert_down_proj.weight")
            self.matrix(to + "ffn_routed_up.weight", of + "routed_expert_up_proj.weight")
            if self.config.get("latent_moe_use_norm"):
                self.vector(to + "ffn_routed_norm.weight", of + "routed_expert_norm.weight")

    def metadata(self):
        c, linear, u32 = self.config, self.config["linear_attn_config"], gguf.U32
        if linear["num_heads"] != c["num_attention_heads"]:
            raise ValueError("llama.cpp needs as many KDA heads as MLA heads")
        if c.get("num_expert_group", 1) != 1:
            raise ValueError("llama.cpp's Kimi graphs know no expert groups")
        text = lambda name, value: self.out.key(name, gguf.STRING, value)
        count = lambda name, value: self.out.key(f"{self.arch}.{name}", u32, value)
        real = lambda name, value: self.out.key(f"{self.arch}.{name}", gguf.F32_VALUE, value)
        text("general.architecture", self.arch)
        text("general.name", "weft peer")
        self.out.key("general.file_type", u32, FILE_TYPE_F32 if self.f32 else FILE_TYPE_MXFP4 if self.mxfp4 else FILE_TYPE_BF16)
        text("tokenizer.ggml.model", "none")
        tail, latent = c["qk_rope_head_dim"], c["kv_lora_rank"]
        for name, value in (
                ("vocab_size", c["vocab_size"]), ("context_length", c.get("max_position_embeddings") or c["model_max_length"]),
                ("embedding_length", c["hidden_size"]), ("block_count", c["num_hidden_layers"]),
                ("feed_forward_length", c["intermediate_size"]), ("attention.head_count", c["num_attention_heads"]),
                ("ssm.conv_kernel", linear["short_conv_kernel_size"]), ("kda.head_dim", linear["head_dim"]),
                ("attention.kv_lora_rank", latent), ("rope.dimension_count", tail),
                ("attention.key_length", latent + tail), ("attention.value_length", latent),
                ("attention.key_length_mla", c["qk_nope_head_dim"] + tail), ("attention.value_length_mla", c["v_head_dim"]),
                ("expert_count", c["num_experts"]), ("expert_used_count", c["num_experts_per_token"]),
                ("expert_feed_forward_length", c["moe_intermediate_size"]), ("expert_shared_count", c.get("num_shared_experts", 0)),
                ("leading_dense_block_count", c.get("first_k_dense_replace", 0)), ("expert_gating_func", SIGMOID_ROUTER)):
            count(name, value)
        if c.get("q_lora_rank"):
            count("attention.q_lora_rank", c["q_lora_rank"])
        real("attention.layer_norm_rms_epsilon", c["rms_norm_eps"])
        real("expert_weights_scale", c["routed_scaling_factor"])
        self.out.key(f"{self.arch}.expert_weights_norm", gguf.BOOL, bool(c["moe_renormalize"]))
        # Zero key heads mark a layer as recurrent; latent attention counts as one key head.
        self.out.key(f"{self.arch}.attention.head_count_kv", gguf.ARRAY,
                     (gguf.I32, [1 if i in self.full else 0 for i in range(c["num_hidden_layers"])]))
        if self.k3:
            count("attn_res.block_size", c["attn_res_block_size"])
            if c.get("routed_expert_hidden_size"):
                count("expert_latent_length", c["routed_expert_hidden_size"])
            real("kda.gate_lower_bound", linear["gate_lower_bound"])
            real("activation.situ_beta", c["activation_situ_beta"])
            real("activation.situ_linear_beta", c["activation_situ_linear_beta"])


def convert(folder, path, f32=False):
    Conversion(Checkpoint(folder), f32).run().write(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--f32", action="store_true", help="widen every weight to F32")
    args = parser.parse_args()
    convert(args.model, args.out, args.f32)


if __name__ == "__main__":
    main()
