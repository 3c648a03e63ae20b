#!/usr/bin/env python3
"""Tests of scripts/bench/peer: the GGUF writer, the conversion of weights, the pairing and its statistics. No network."""
import array
import contextlib
import io
import json
import math
import pathlib
import random
import struct
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bench" / "peer"))
import checkpoint  # noqa: E402
import compare  # noqa: E402
import convert  # noqa: E402
import engines  # noqa: E402
import gguf  # noqa: E402
import ratios  # noqa: E402

FAKE_ENGINE = """
import json, sys
for line in sys.stdin:
    word = line.split()[0]
    if word == "quit":
        break
    if word == "die":
        sys.exit(3)
    print(json.dumps({"error": "no"} if word == "bad" else {"what": word, "tok_s": 2.0, "vocab": 7}), flush=True)
"""


def floats(data):
    values = array.array("f")
    values.frombytes(bytes(data))
    return list(values)


def widened(data):
    """BF16 bytes to floats, one number at a time."""
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


class Source:
    """Random tensors for a made-up checkpoint; remembers their bytes."""

    def __init__(self, seed):
        self.random, self.tensors = random.Random(seed), {}

    def add(self, name, shape, dtype="BF16"):
        count = math.prod(shape)
        if dtype == "BF16":
            data = b"".join(struct.pack("<f", self.random.uniform(-1, 1))[2:] for _ in range(count))
        elif dtype == "F32":
            data = struct.pack(f"<{count}f", *(self.random.uniform(-1, 1) for _ in range(count)))
        else:
            data = bytes(self.random.randrange(120, 134) if name.endswith("scale") else self.random.randrange(256) for _ in range(count))
        self.tensors[name] = (dtype, shape, data)

    def many(self, prefix, dtype="BF16", **shapes):
        for name, shape in shapes.items():
            self.add(f"{prefix}{name}.weight", shape, dtype)


HIDDEN, HEADS, DIM, LATENT, KEY, TAIL, VALUE, EXPERTS, INNER = 32, 2, 8, 16, 8, 4, 12, 3, 32


def configuration(linear):
    text = {"vocab_size": 40, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": HEADS,
            "rms_norm_eps": 1e-5, "kv_lora_rank": LATENT, "qk_nope_head_dim": KEY, "qk_rope_head_dim": TAIL, "v_head_dim": VALUE,
            "num_experts": EXPERTS, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": INNER,
            "moe_renormalize": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "model_max_length": 64,
            "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2], "num_heads": HEADS, "head_dim": DIM,
                                   "short_conv_kernel_size": 4}}
    if not linear:
        text.update(q_lora_rank=24, routed_expert_hidden_size=64, latent_moe_use_norm=True, attn_res_block_size=2,
                    activation_situ_beta=4.0, activation_situ_linear_beta=25.0, mla_use_output_gate=True)
        text["linear_attn_config"].update(gate_lower_bound=-5.0)
    return text


def make_checkpoint(folder, linear):
    """Two layers: delta attention with a dense MLP, latent attention with experts. Returns the tensors by short name."""
    s, width, vector = Source(7), HEADS * DIM, "F32"
    s.many("model.", embed_tokens=(40, HIDDEN), norm=(HIDDEN,))
    s.many("", lm_head=(40, HIDDEN))
    if not linear:
        s.many("model.", output_attn_res_norm=(HIDDEN,), output_attn_res_proj=(1, HIDDEN))
    for layer in range(2):
        s.many(f"model.layers.{layer}.", input_layernorm=(HIDDEN,), post_attention_layernorm=(HIDDEN,))
        if not linear:
            for site in ("self_attention_res", "mlp_res"):
                s.many(f"model.layers.{layer}.", **{site + "_norm": (HIDDEN,), site + "_proj": (1, HIDDEN)})
    at = "model.layers.0.self_attn."
    s.many(at, q_proj=(width, HIDDEN), k_proj=(width, HIDDEN), v_proj=(width, HIDDEN), f_a_proj=(DIM, HIDDEN), f_b_proj=(width, DIM),
           b_proj=(HEADS, HIDDEN), o_proj=(HIDDEN, width))
    s.many(at, "BF16" if linear else vector, q_conv1d=(width, 1, 4), k_conv1d=(width, 1, 4), v_conv1d=(width, 1, 4), o_norm=(DIM,))
    s.many(at, **({"g_a_proj": (DIM, HIDDEN), "g_b_proj": (width, DIM)} if linear else {"g_proj": (width, HIDDEN)}))
    s.add(at + "A_log", (1, 1, HEADS, 1) if linear else (HEADS + 2,), vector)
    s.add(at + "dt_bias", (width,), vector)
    s.many("model.layers.0.mlp.", gate_proj=(48, HIDDEN), up_proj=(48, HIDDEN), down_proj=(HIDDEN, 48))
    at = "model.layers.1.self_attn."
    queries = HEADS * (KEY + TAIL)
    if linear:
        s.many(at, q_proj=(queries, HIDDEN))
    else:
        s.many(at, q_a_proj=(24, HIDDEN), q_a_layernorm=(24,), q_b_proj=(queries, 24), g_proj=(HEADS * VALUE, HIDDEN))
    s.many(at, kv_a_proj_with_mqa=(LATENT + TAIL, HIDDEN), kv_a_layernorm=(LATENT,), kv_b_proj=(HEADS * (KEY + VALUE), LATENT),
           o_proj=(HIDDEN, HEADS * VALUE))
    at = "model.layers.1.block_sparse_moe."
    s.many(at, gate=(EXPERTS, HIDDEN))
    s.add(at + "gate.e_score_correction_bias", (EXPERTS,), "BF16" if linear else vector)
    s.many(at + "shared_experts.", gate_proj=(INNER, HIDDEN), up_proj=(INNER, HIDDEN), down_proj=(HIDDEN, INNER))
    inside = HIDDEN if linear else 64
    for e in range(EXPERTS):
        for name, rows, columns in (("w1", INNER, inside), ("w2", inside, INNER), ("w3", INNER, inside)):
            if linear:
                s.add(f"{at}experts.{e}.{name}.weight", (rows, columns))
            else:
                s.add(f"{at}experts.{e}.{name}.weight_packed", (rows, columns // 2), "U8")
                s.add(f"{at}experts.{e}.{name}.weight_scale", (rows, columns // 32), "U8")
    if not linear:
        s.many(at, routed_expert_down_proj=(64, HIDDEN), routed_expert_up_proj=(HIDDEN, 64), routed_expert_norm=(64,))
    prefix = "" if linear else "language_model."
    stored = {prefix + name: tensor for name, tensor in s.tensors.items()}
    if not linear:
        stored["vision_tower.patch.weight"] = ("BF16", (2,), bytes(4))  # text only: left out
    names = list(stored)
    (folder / "config.json").write_text(json.dumps(configuration(True) if linear else {"text_config": configuration(False)}))
    half = len(names) // 2
    for shard, part in enumerate((names[:half], names[half:])):
        checkpoint.write_safetensors(folder / f"model-{shard}.safetensors", {n: stored[n] for n in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {n: f"model-{int(i >= half)}.safetensors" for i, n in enumerate(names)}}))
    return s.tensors


class Container(unittest.TestCase):
    def test_round_trip(self):
        writer = gguf.Writer()
        keys = {"text": (gguf.STRING, "grüße"), "count": (gguf.U32, 7), "real": (gguf.F32_VALUE, 0.5), "yes": (gguf.BOOL, True),
                "list": (gguf.ARRAY, (gguf.I32, [0, -1, 5])), "names": (gguf.ARRAY, (gguf.STRING, ["a", ""]))}
        for name, (kind, value) in keys.items():
            writer.key(name, kind, value)
        block, row, odd = bytes(range(34)), bytes(range(100, 112)), bytes([9, 8, 7, 6, 5, 4])
        writer.tensor("blocks", gguf.MXFP4, (2, 32), lambda: (block[:17], block[17:]))
        writer.tensor("row", gguf.F32, (3,), lambda: row)
        writer.tensor("odd", gguf.BF16, (1, 3, 1), lambda: bytearray(odd))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.gguf"
            writer.write(path)
            data = path.read_bytes()
            read_keys, tensors = gguf.read(path)
        self.assertEqual(read_keys, {"text": "grüße", "count": 7, "real": 0.5, "yes": True, "list": [0, -1, 5], "names": ["a", ""]})
        self.assertEqual(tensors, {"blocks": (gguf.MXFP4, (2, 32), block), "row": (gguf.F32, (3,), row),
                                   "odd": (gguf.BF16, (1, 3, 1), odd)})
        self.assertEqual(len(data) % gguf.ALIGNMENT, 0)
        self.assertEqual(data.index(block) % gguf.ALIGNMENT, 0)
        self.assertEqual(data.index(row) % gguf.ALIGNMENT, 0)

    def test_wrong_sizes_are_refused(self):
        writer = gguf.Writer()
        writer.tensor("short", gguf.F32, (3,), lambda: bytes(8))
        with self.assertRaisesRegex(ValueError, "short: 8 bytes made, 12 expected"), tempfile.TemporaryDirectory() as folder:
            writer.write(pathlib.Path(folder) / "x.gguf")
        with self.assertRaisesRegex(ValueError, "two tensors"):
            writer.tensor("short", gguf.F32, (3,), bytes)
        with self.assertRaisesRegex(ValueError, "blocks of 32"):
            gguf.tensor_bytes(gguf.MXFP4, (2, 33))


class Weights(unittest.TestCase):
    def test_mxfp4_keeps_every_number_in_its_place(self):
        rng = random.Random(3)
        packed, scales = bytes(rng.randrange(256) for _ in range(16 * 5)), bytes([0, 126, 127, 130, 250])
        expected = []
        for column in range(32 * 5):
            byte = packed[column // 2]
            code = byte & 15 if column % 2 == 0 else byte >> 4
            expected.append(convert.E2M1[code] * 2.0 ** (scales[column // 32] - 127))
        self.assertEqual(floats(convert.decode_mxfp4(packed, scales)), expected)
        blocks, found = convert.repack_mxfp4(packed, scales), []
        for g in range(5):
            block = blocks[17 * g:17 * g + 17]
            codes = [b & 15 for b in block[1:]] + [b >> 4 for b in block[1:]]
            found += [convert.E2M1[c] * 2.0 ** (block[0] - 127) for c in codes]
        self.assertEqual(found, expected)
        with self.assertRaisesRegex(ValueError, "NaN"):
            convert.decode_mxfp4(packed[:16], b"\xff")

    def test_key_and_value_rows_are_parted(self):
        for item in (2, 4):
            rows = [[bytes([h, r, c, item])[:item] for c in range(3)] for h in range(2) for r in range(5)]
            keys, values = convert.split_kv_b(b"".join(b"".join(r) for r in rows), item, 2, 2, 3, 3)
            self.assertEqual(keys, b"".join(rows[5 * h + r][c] for h in range(2) for c in range(3) for r in range(2)))
            self.assertEqual(values, b"".join(b"".join(rows[5 * h + 2 + r]) for h in range(2) for r in range(3)))


class Models(unittest.TestCase):
    def converted(self, linear, f32=False):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            source = make_checkpoint(folder, linear)
            convert.convert(folder, folder / "x.gguf", f32)
            return source, *gguf.read(folder / "x.gguf")

    def test_k3(self):
        source, keys, out = self.converted(linear=False)
        bytes_of = lambda name: source["model.layers." + name][2]
        self.assertEqual(keys["general.architecture"], "kimi-k3")
        self.assertEqual(keys["kimi-k3.attention.head_count_kv"], [0, 1])
        self.assertEqual((keys["kimi-k3.attention.key_length"], keys["kimi-k3.attention.key_length_mla"]), (LATENT + TAIL, KEY + TAIL))
        self.assertEqual((keys["kimi-k3.expert_latent_length"], keys["kimi-k3.kda.gate_lower_bound"]), (64, -5.0))
        self.assertEqual(out["blk.0.ssm_g.weight"], (gguf.BF16, (HEADS * DIM, HIDDEN), bytes_of("0.self_attn.g_proj.weight")))
        self.assertEqual(out["blk.1.attn_gate.weight"][2], bytes_of("1.self_attn.g_proj.weight"))
        self.assertEqual(out["blk.0.ssm_conv1d_k.weight"], (gguf.F32, (1, HEADS * DIM, 1, 4), bytes_of("0.self_attn.k_conv1d.weight")))
        decays = floats(bytes_of("0.self_attn.A_log"))[:HEADS]
        self.assertEqual(out["blk.0.ssm_a"][1], (HEADS,))
        for got, a in zip(floats(out["blk.0.ssm_a"][2]), decays):
            self.assertAlmostEqual(got, -math.exp(a), places=6)
        norm, proj = widened(bytes_of("1.mlp_res_norm.weight")), widened(bytes_of("1.mlp_res_proj.weight"))
        self.assertEqual(floats(out["blk.1.ffn_res_score.weight"][2]), [x * y for x, y in zip(norm, proj)])
        self.assertEqual(floats(out["blk.1.ffn_gate_inp.weight"][2]), widened(bytes_of("1.block_sparse_moe.gate.weight")))
        kind, shape, data = out["blk.1.ffn_down_exps.weight"]
        self.assertEqual((kind, shape), (gguf.MXFP4, (EXPERTS, 64, INNER)))
        expert = "1.block_sparse_moe.experts.2.w2.weight_"
        self.assertEqual(data[2 * len(data) // 3:], bytes(convert.repack_mxfp4(bytes_of(expert + "packed"), bytes_of(expert + "scale"))))
        self.assertNotIn("vision_tower.patch.weight", " ".join(out))

    def test_linear(self):
        source, keys, out = self.converted(linear=True)
        self.assertEqual(keys["general.architecture"], "kimi-linear")
        self.assertNotIn("kimi-linear.attention.q_lora_rank", keys)
        self.assertAlmostEqual(keys["kimi-linear.expert_weights_scale"], 2.5)
        self.assertEqual(out["blk.0.ssm_a"][1], (HEADS, 1))
        self.assertEqual(out["blk.1.attn_q.weight"][1], (HEADS * (KEY + TAIL), HIDDEN))
        self.assertEqual(floats(out["blk.1.exp_probs_b.bias"][2]),
                         widened(source["model.layers.1.block_sparse_moe.gate.e_score_correction_bias"][2]))
        experts = b"".join(source[f"model.layers.1.block_sparse_moe.experts.{e}.w3.weight"][2] for e in range(EXPERTS))
        self.assertEqual(out["blk.1.ffn_up_exps.weight"], (gguf.BF16, (EXPERTS, INNER, HIDDEN), experts))
        self.assertFalse([name for name in out if "res_score" in name or "routed" in name])

    def test_f32_widens_everything(self):
        source, _, out = self.converted(linear=False, f32=True)
        self.assertEqual({kind for kind, _, _ in out.values()}, {gguf.F32})
        self.assertEqual(floats(out["token_embd.weight"][2]), widened(source["model.embed_tokens.weight"][2]))
        first = "model.layers.1.block_sparse_moe.experts.0.w1.weight_"
        decoded = convert.decode_mxfp4(source[first + "packed"][2], source[first + "scale"][2])
        self.assertEqual(out["blk.1.ffn_gate_exps.weight"][2][:len(decoded)], decoded)

    def test_unknown_and_missing_tensors(self):
        for change, message in ((lambda t: t.pop("model.norm.weight"), "no tensor model.norm.weight"),
                                (lambda t: t.update({"model.layers.9.x": None}), "1 tensors left over, first model.layers.9.x")):
            with tempfile.TemporaryDirectory() as name, self.assertRaisesRegex(ValueError, message):
                make_checkpoint(pathlib.Path(name), linear=True)
                read = checkpoint.Checkpoint(name)
                change(read.tensors)
                convert.Conversion(read, f32=False).run()


class Statistics(unittest.TestCase):
    def test_summary(self):
        pairs = [ratios.Pair("a", 0, "weft", 10.0, 5.0), ratios.Pair("b", 0, "weft", 1.0, 4.0), ratios.Pair("a", 1, "llama.cpp", 9.0, 3.0),
                 ratios.Pair("a", 2, "weft", 8.0, 8.0)]
        a, b = ratios.summarize(pairs)
        self.assertEqual(a, {"what": "a", "pairs": 3, "weft": 9.0, "llama.cpp": 5.0, "ratio": 2.0, "ratio_min": 1.0, "ratio_max": 3.0})
        self.assertEqual((b["what"], b["ratio"]), ("b", 0.25))
        self.assertIn("| a | 9.0 | 5.0 | **2.00** | 1.00..3.00 | 3 |", ratios.markdown([a], "t"))
        with tempfile.TemporaryDirectory() as folder:
            ratios.write_csv(f"{folder}/x.csv", pairs)
            ratios.write_json(f"{folder}/x.json", {"model": "m"}, pairs)
            self.assertEqual(pathlib.Path(folder, "x.csv").read_text().splitlines()[1], "a,0,weft,10.000,5.000,2.0000")
            record = json.loads(pathlib.Path(folder, "x.json").read_text())
        self.assertEqual((record["model"], record["pairs"][2]["ratio"], record["summary"][0]["pairs"]), ("m", 3.0, 3))

    def test_relative_difference(self):
        self.assertEqual(ratios.relative_difference([1.0, -4.0], [2.0, -4.0]), 0.25)
        self.assertEqual(ratios.relative_difference([0.0], [0.0]), 0.0)
        for bad in (math.nan, math.inf):
            self.assertEqual(ratios.relative_difference([1.0, bad], [1.0, 1.0]), math.inf)
            self.assertEqual(ratios.relative_difference([1.0, 1.0], [bad, 1.0]), math.inf)
        with self.assertRaises(ValueError):
            ratios.relative_difference([1.0], [1.0, 2.0])


class Recorder:
    """Stands for a loaded program; its own process is the one that is watched."""

    def __init__(self, name, speed, log):
        self.name, self.speed, self.log, self.pid = name, speed, log, "self"

    def ask(self, line):
        self.log.append((self.name, line))
        return {"tok_s": self.speed}


class Turns(unittest.TestCase):
    def test_both_are_asked_the_same_and_take_turns_at_going_first(self):
        log = []
        args = types.SimpleNamespace(prefill=[64, 8192], decode=[4], rounds=3, long_rounds=1, lock=None)
        comparison = compare.Comparison(args, Recorder("weft", 200.0, log), Recorder("llama.cpp", 100.0, log))
        with contextlib.redirect_stdout(io.StringIO()) as printed, unittest.mock.patch.object(compare, "machine", return_value={}):
            comparison.run()
        self.assertEqual(len(comparison.machine), 3)
        steps = round(compare.DECODE_SECONDS * 100 / 4)
        rounds = [["prefill 64", "prefill 8192", f"decode 4 {steps}"], ["prefill 64", f"decode 4 {steps}"], ["prefill 64", f"decode 4 {steps}"]]
        expected = [(name, f"decode 4 {compare.STEPS_MIN}") for name in ("weft", "llama.cpp")]
        for turn, lines in enumerate(rounds):
            expected += [(name, line) for line in lines for name in ratios.order(turn, ("weft", "llama.cpp"))]
        self.assertEqual(log, expected)
        self.assertEqual([p.first for p in comparison.pairs if p.what == "prefill 64"], ["weft", "llama.cpp", "weft"])
        self.assertTrue(all(p.ratio == 2.0 for p in comparison.pairs))
        self.assertEqual(printed.getvalue().count("ratio  2.00"), 7)

    def test_a_program_over_pipes(self):
        engine = engines.Engine("fake", [sys.executable, "-c", FAKE_ENGINE])
        self.assertEqual(engine.about["vocab"], 7)
        self.assertEqual(engine.ask("prefill 3")["what"], "prefill")
        with self.assertRaisesRegex(engines.EngineError, "fake: \"bad\": no"):
            engine.ask("bad")
        with self.assertRaisesRegex(engines.EngineError, "exit status 3"):
            engine.ask("die")
        engine.close()

    def test_machine_peaks(self):
        rates = [{"kind": "read", "best_per_s": 30e9}, {"kind": "read", "best_per_s": 34e9}, {"kind": "bf16", "best_per_s": 465e9}]
        self.assertEqual(compare.describe([{"rates": rates}]), "34.0 GB/s read, 465.0 GFLOP/s BF16")
        self.assertEqual(compare.describe([{"rates": rates}, {"rates": rates[:1]}, {}]), "30.0..34.0 GB/s read, 465.0 GFLOP/s BF16")
        self.assertEqual(compare.describe([{}]), "not measured")


if __name__ == "__main__":
    unittest.main()
