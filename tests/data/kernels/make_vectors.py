#!/usr/bin/env python3
"""Writes vectors.json: small float64 results of the model's formulas, an oracle that shares no code with the kernels.

Run it after changing a formula:  python3 tests/data/kernels/make_vectors.py
Inputs are rounded to float32 first, so the C++ test reads exactly what was used here.
"""
import json
import math
import pathlib

import numpy as np

rng = np.random.default_rng(2024)


def draw(*shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape).astype(np.float32).astype(np.float64)


def logistic(x):
    return 1.0 / (1.0 + np.exp(-x))


def kda(gate):
    """Short convolution, SiLU, unit q and k, decay, delta rule, gated norm: token by token with explicit matrices."""
    heads, dk, dv, taps, tokens = 2, 4, 3, 4, 9
    q, k = draw(tokens, heads * dk, low=-2, high=2), draw(tokens, heads * dk, low=-2, high=2)
    v, f = draw(tokens, heads * dv, low=-2, high=2), draw(tokens, heads * dk, low=-2, high=2)
    u, b = draw(tokens, heads * dv), draw(tokens, heads)
    cq, ck, cv = draw(heads * dk, taps), draw(heads * dk, taps), draw(heads * dv, taps)
    a_log, dt_bias, o_norm = draw(heads), draw(heads * dk, low=-3, high=1), draw(dv, low=0.5, high=1.5)

    def conv(x, w):
        out = np.zeros_like(x)
        for t in range(tokens):
            for j in range(taps):
                if t - (taps - 1) + j >= 0:
                    out[t] += w[:, j] * x[t - (taps - 1) + j]
        return out * logistic(out)

    qc, kc, vc = conv(q, cq), conv(k, ck), conv(v, cv)
    y = np.zeros((tokens, heads * dv))
    state = np.zeros((heads, dk, dv))
    for h in range(heads):
        S = np.zeros((dk, dv))
        ks, vs = slice(h * dk, (h + 1) * dk), slice(h * dv, (h + 1) * dv)
        for t in range(tokens):
            qt = qc[t, ks] / math.sqrt(np.sum(qc[t, ks] ** 2) + 1e-6) / math.sqrt(dk)
            kt = kc[t, ks] / math.sqrt(np.sum(kc[t, ks] ** 2) + 1e-6)
            z = f[t, ks] + dt_bias[ks]
            if gate == "bounded":
                g = -5.0 * logistic(math.exp(a_log[h]) * z)
            else:
                g = -math.exp(a_log[h]) * np.log1p(np.exp(z))
            beta = logistic(b[t, h])
            S = (np.eye(dk) - beta * np.outer(kt, kt)) @ (np.diag(np.exp(g)) @ S) + beta * np.outer(kt, vc[t, vs])
            o = S.T @ qt
            y[t, vs] = o / math.sqrt(np.mean(o * o) + 1e-5) * o_norm * logistic(u[t, vs])
        state[h] = S
    history = [x[tokens - taps + 1:].T for x in (q, k, v)]
    return {"gate": gate, "heads": heads, "head_k": dk, "head_v": dv, "taps": taps, "tokens": tokens, "q": q, "k": k,
            "v": v, "f": f, "u": u, "b": b, "conv_q": cq, "conv_k": ck, "conv_v": cv, "a_log": a_log,
            "dt_bias": dt_bias, "o_norm": o_norm, "y": y, "state": state,
            "conv_state": np.concatenate([h.ravel() for h in history])}


def mla():
    heads, nope, tail, dv, latent, tokens = 2, 4, 3, 5, 6, 7
    x, w = draw(tokens, latent + tail, low=-2, high=2), draw(latent, low=0.5, high=1.5)
    q, u = draw(tokens, heads * (nope + tail), low=-2, high=2), draw(tokens, heads * dv)
    kv_b = draw(heads * (nope + dv), latent)
    c = x[:, :latent] / np.sqrt(np.mean(x[:, :latent] ** 2, 1, keepdims=True) + 1e-6) * w
    y = np.zeros((tokens, heads * dv))
    for h in range(heads):
        rows = kv_b[h * (nope + dv):(h + 1) * (nope + dv)]
        keys, values = c @ rows[:nope].T, c @ rows[nope:].T
        for t in range(tokens):
            qt = q[t, h * (nope + tail):(h + 1) * (nope + tail)]
            s = (keys[:t + 1] @ qt[:nope] + x[:t + 1, latent:] @ qt[nope:]) / math.sqrt(nope + tail)
            p = np.exp(s - s.max())
            y[t, h * dv:(h + 1) * dv] = p @ values[:t + 1] / p.sum()
    return {"heads": heads, "nope": nope, "tail": tail, "v_dim": dv, "latent": latent, "tokens": tokens, "x": x, "w": w,
            "q": q, "u": u, "kv_b": kv_b, "y": y * logistic(u)}


def attnres(n_blocks, normed):
    rows, width = 2, 7
    blocks, prefix = draw(n_blocks, rows, width, low=-2, high=2), draw(rows, width, low=-2, high=2)
    q, norm_w = draw(width), draw(width, low=0.5, high=1.5)
    sources = list(blocks) + [prefix]
    scores = np.stack([(v / np.sqrt(np.mean(v * v, 1, keepdims=True) + 1e-5)) @ q for v in sources])
    p = np.exp(scores - scores.max(0))
    p /= p.sum(0)
    y = sum(p[j][:, None] * sources[j] for j in range(len(sources)))
    if normed:
        y = y / np.sqrt(np.mean(y * y, 1, keepdims=True) + 1e-5) * norm_w
    return {"n_blocks": n_blocks, "rows": rows, "width": width, "normed": int(normed), "blocks": blocks, "prefix": prefix,
            "q": q, "norm_w": norm_w, "y": y}


def plain(value):
    if isinstance(value, np.ndarray):
        return [float("%.17g" % x) for x in value.ravel()]
    return value


def main():
    cases = {"kda": [kda("bounded"), kda("softplus")], "mla": [mla()],
             "attnres": [attnres(0, False), attnres(3, False), attnres(9, True)]}
    text = json.dumps({name: [{k: plain(v) for k, v in case.items()} for case in group] for name, group in cases.items()},
                      separators=(",", ":"))
    text = text.replace('},{', '},\n{').replace('],"', '],\n"')
    pathlib.Path(__file__).with_name("vectors.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
