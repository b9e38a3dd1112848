import math

import numpy as np

from tests.reference.activations import sigmoid

FEATURE_MAPS = {
    "sigmoid": sigmoid,
    "elu": lambda x: x + 1 if x > 0 else math.exp(x),
    "relu": lambda x: max(x, 0.0),
}


def flow_attention(
    queries,
    keys,
    values,
    query_mask=None,
    key_mask=None,
    causal=False,
    feature_map="sigmoid",
    competition="softmax",
    allocation="sigmoid",
    competition_clip=None,
    epsilon=1e-6,
):
    """`(b, h, t, d)` in, outputs and the four flow quantities out."""
    batch, num_heads, num_queries, _ = queries.shape
    num_keys = keys.shape[2]
    outputs = np.zeros((batch, num_heads, num_queries, values.shape[3]), "float64")
    flow = {
        name: np.zeros((batch, num_heads, size), "float64")
        for name, size in {
            "incoming": num_queries,
            "outgoing": num_keys,
            "competition": num_keys,
            "allocation": num_queries,
        }.items()
    }
    phi = np.vectorize(FEATURE_MAPS[feature_map], otypes=["float64"])
    for b in range(batch):
        sees = [True] * num_queries if query_mask is None else list(query_mask[b])
        real = [True] * num_keys if key_mask is None else list(key_mask[b])
        if causal:
            sees = real = [x and y for x, y in zip(sees, real)]
        for h in range(num_heads):
            row = _causal if causal else _full
            results = row(
                phi(queries[b, h]),
                phi(keys[b, h]),
                values[b, h].astype("float64"),
                sees,
                real,
                competition,
                allocation,
                competition_clip,
                epsilon,
            )
            outputs[b, h] = results[0]
            for name, value in zip(
                ("incoming", "outgoing", "competition", "allocation"), results[1:]
            ):
                flow[name][b, h] = value
    return outputs, flow


def _clip(x, clip):
    return x if clip is None else max(-clip, min(clip, x))


def _full(q, k, v, sees, real, competition, allocation, clip, eps):
    queries = [t for t in range(len(q)) if sees[t]]
    keys = [s for s in range(len(k)) if real[s]]
    k = np.where(np.array(real)[:, None], k, 0.0)
    zero = np.zeros(q.shape[1])
    k_sum, q_sum = sum((k[s] for s in keys), zero), sum((q[t] for t in queries), zero)
    I = [float((q[t] + eps) @ (k_sum + eps)) for t in range(len(q))]
    O = [float((k[s] + eps) @ (q_sum + eps)) for s in range(len(k))]
    k_over = sum((k[s] / O[s] for s in keys), zero)
    q_over = sum((q[t] / I[t] for t in queries), zero)
    sink = [float((q[t] + eps) @ (k_over + eps)) for t in range(len(q))]
    source = [_clip(float((k[s] + eps) @ (q_over + eps)), clip) for s in range(len(k))]
    L, S = len(queries), len(keys)
    if competition == "softmax":
        high = max((source[s] for s in keys), default=0.0)
        total = sum(math.exp(source[s] - high) for s in keys)
        C = [
            S * math.exp(source[s] - high) / total if real[s] else 0.0
            for s in range(len(k))
        ]
    else:
        C = [sigmoid(x) if competition else 1.0 for x in source]
    C = [x if seen else 0.0 for x, seen in zip(C, real)]
    if allocation == "softmax":
        high = max((sink[t] for t in queries), default=0.0)
        total = sum(math.exp(sink[t] - high) for t in queries)
        A = [
            L * math.exp(sink[t] - high) / total if sees[t] else 0.0
            for t in range(len(q))
        ]
    else:
        A = [sigmoid(x * L / max(S, 1)) if allocation else 1.0 for x in sink]
    y = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        for s in keys:
            y[t] += A[t] / I[t] * float(q[t] @ k[s]) * C[s] * v[s]
    return y, I, O, C, A


def _causal(q, k, v, _, real, competition, allocation, clip, eps):
    length, zero = len(q), np.zeros(q.shape[1])
    k = np.where(np.array(real)[:, None], k, 0.0)
    past = [[s for s in range(t + 1) if real[s]] for t in range(length)]
    n = [max(len(seen), 1) for seen in past]

    def running(rows, t):
        return sum((rows[s] for s in past[t]), zero)

    I = [float((q[t] + eps) @ (running(k, t) + eps)) for t in range(length)]
    O = [float((k[t] + eps) @ (running(q, t) + eps)) for t in range(length)]
    k_over = [k[s] * n[s] / O[s] for s in range(length)]
    q_over = [q[s] * n[s] / I[s] for s in range(length)]
    sink, source, C, A = [], [], [], []
    for t in range(length):
        sink.append(float((q[t] + eps) @ (running(k_over, t) + eps)) / n[t])
        raw = float((k[t] + eps) @ (running(q_over, t) + eps)) / n[t]
        source.append(_clip(raw, clip))
        A.append(sigmoid(sink[t]) if allocation else 1.0)
        if not real[t]:
            C.append(0.0)
        elif competition == "softmax":
            high = max(source[s] for s in past[t])
            total = sum(math.exp(source[s] - high) for s in past[t])
            C.append(n[t] * math.exp(source[t] - high) / total)
        else:
            C.append(sigmoid(source[t]) if competition else 1.0)
    y = np.zeros((length, v.shape[1]))
    for t in range(length):
        for s in past[t]:
            y[t] += A[t] / I[t] * float(q[t] @ k[s]) * C[s] * v[s]
    return y, I, O, C, A
