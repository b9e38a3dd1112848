"""What the layers are measured beside."""

import functools
from importlib.util import find_spec

import keras
from keras import ops


def residual(layers, width):
    """`x + layer(norm(x))` of each layer, as a model; a published unit is one such."""
    x = inputs = keras.Input((None, width))
    for layer in layers:
        y = layer(keras.layers.LayerNormalization(epsilon=1e-5)(x))
        x = keras.layers.Add()([x, y])
    return keras.Model(inputs, x)


def self_attention(layer, width, **options):
    """A sequence attends to itself, as a model."""
    x = keras.Input((None, width))
    return keras.Model(x, layer(x, x, **options))


def transformer_block(width, num_heads, feed_forward, causal):
    """Pre-norm softmax attention and a gated feed-forward layer, on Keras' layers."""
    x = inputs = keras.Input((None, width))
    y = keras.layers.RMSNormalization()(x)
    y = keras.layers.MultiHeadAttention(num_heads, width // num_heads)(
        y, y, use_causal_mask=causal
    )
    x = keras.layers.Add()([x, y])
    y = keras.layers.RMSNormalization()(x)
    gate = keras.layers.Dense(feed_forward, activation="silu")(y)
    y = keras.layers.Multiply()([gate, keras.layers.Dense(feed_forward)(y)])
    x = keras.layers.Add()([x, keras.layers.Dense(width)(y)])
    return keras.Model(inputs, x, name="transformer_block")


class MixedProducts(keras.layers.Layer):
    """The matrix products of MixedChunkAttention, with two sums between them.

    No activation, bias, rotation, mask or running sum: what the machine gives for
    products of these shapes.
    """

    def __init__(self, width, expanded, key_dim, chunk_size, causal):
        super().__init__()
        self.shapes = [
            (width, expanded),
            (width, expanded),
            (width, key_dim),
            (expanded, width),
        ]
        self.chunk_size, self.causal = chunk_size, causal

    def build(self, shape):
        self.kernels = [self.add_weight(shape=shape) for shape in self.shapes]

    def call(self, x):
        shape = ops.shape(x)
        rows = ops.reshape(x, (-1, shape[2]))
        *inside, last = self.kernels
        gate, values, keys = [ops.matmul(rows, kernel) for kernel in inside]
        size = min(self.chunk_size, shape[1])
        keys, chunks = [ops.reshape(y, (-1, size, y.shape[1])) for y in (keys, values)]
        turned = ops.swapaxes(keys, 1, 2)
        local = ops.matmul(ops.matmul(keys, turned), chunks)
        if self.causal:
            summary = ops.matmul(turned, chunks)
        else:
            keys = ops.reshape(keys, (-1, keys.shape[2]))
            summary = ops.matmul(ops.transpose(keys), values)
        across = ops.matmul(keys, summary)
        mixed = gate + sum(ops.reshape(y, (-1, y.shape[-1])) for y in (local, across))
        return ops.reshape(ops.matmul(mixed, last), shape)


class PlainCausalFlow(keras.layers.Layer):
    """Causal Flow-Attention as the equation stands, with a sum for every position.

    Wu et al., 2022, section 3.2: every sum over earlier positions is a running sum,
    and that of `k v^T` a tensor `(b, h, t, d, e)`.
    """

    def __init__(self, num_heads, key_dim):
        super().__init__()
        self.num_heads, self.key_dim = num_heads, key_dim

    def build(self, shape):
        width = self.num_heads * self.key_dim
        self.denses = [keras.layers.Dense(width) for _ in range(3)]
        self.output_dense = keras.layers.Dense(shape[-1])
        for dense in self.denses:
            dense.build(shape)
        self.output_dense.build((*shape[:-1], width))

    def call(self, x):
        batch, length = ops.shape(x)[:2]

        def heads(dense):
            y = ops.reshape(dense(x), (batch, length, self.num_heads, self.key_dim))
            return ops.transpose(y, (0, 2, 1, 3))  # (b, h, t, d)

        def dot(a, b):
            return ops.sum(a * b, axis=-1)  # (b, h, t)

        def running(a):
            return ops.cumsum(a, axis=2)

        q, k, v = map(heads, self.denses)
        q, k = ops.sigmoid(q), ops.sigmoid(k)
        count = ops.arange(1, length + 1, dtype="float32")
        epsilon = 1e-6
        incoming = 1 / dot(q + epsilon, running(k) + epsilon) * count
        outgoing = 1 / dot(k + epsilon, running(q) + epsilon) * count
        sink = (
            dot(q + epsilon, running(k * ops.expand_dims(outgoing, -1)) + epsilon)
            / count
        )
        source = (
            dot(k + epsilon, running(q * ops.expand_dims(incoming, -1)) + epsilon)
            / count
        )
        allocation = ops.sigmoid(sink)
        weights = ops.exp(source)
        competition = weights / ops.cumsum(weights, axis=2) * count
        v = v * ops.expand_dims(competition, -1)
        products = ops.expand_dims(k, -1) * ops.expand_dims(v, -2)  # (b, h, t, d, e)
        scale = ops.expand_dims(incoming / count, -1)
        y = ops.einsum("bhtd,bhtde->bhte", q * scale, running(products))
        y = y * ops.expand_dims(allocation, -1)
        y = ops.transpose(y, (0, 2, 1, 3))
        return self.output_dense(ops.reshape(y, (batch, length, -1)))


def torch_block(width, num_heads, feed_forward, causal):
    """The same as `transformer_block` in torch, on its scaled_dot_product_attention."""
    import torch
    from torch.nn import functional

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))
            self.qkv = torch.nn.Linear(width, 3 * width)
            self.out = torch.nn.Linear(width, width)
            self.gate_and_value = torch.nn.Linear(width, 2 * feed_forward)
            self.down = torch.nn.Linear(feed_forward, width)

        def forward(self, x):
            b, t, _ = x.shape
            qkv = self.qkv(self.norms[0](x)).view(b, t, 3, num_heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
            gate, value = self.gate_and_value(self.norms[1](x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * value)

    return Block()


def of_torch(width, key_dim, chunk_size, num_heads, feed_forward):
    """Group, name and function of `causal` of what is for torch alone.

    The published layers hold a norm, left out here, and a residual.
    """
    yield (
        "Model",
        "Transformer block of torch",
        functools.partial(torch_block, width, num_heads, feed_forward),
    )
    if find_spec("flash_pytorch"):
        import flash_pytorch
        import rotary_embedding_torch  # comes with it
        import torch

        options = dict(dim=width, query_key_dim=key_dim, norm_klass=torch.nn.Identity)
        yield (
            "FLASH",
            "FLASH of flash-pytorch",
            lambda causal: flash_pytorch.FLASH(
                causal=causal,
                group_size=chunk_size,
                rotary_pos_emb=rotary_embedding_torch.RotaryEmbedding(32),
                **options,
            ),
        )
        yield (
            "GAU",
            "GAU of flash-pytorch",
            lambda causal: flash_pytorch.GAU(causal=causal, **options),
        )
    if find_spec("x_transformers"):
        import x_transformers

        yield (
            "Model",
            "Transformer++ of x-transformers",
            lambda causal: x_transformers.Decoder(
                dim=width,
                depth=1,
                heads=num_heads,
                attn_dim_head=width // num_heads,
                attn_flash=True,
                rotary_pos_emb=True,
                use_rmsnorm=True,
                ff_glu=True,
                ff_swish=True,
                ff_no_bias=True,
                ff_mult=feed_forward / width,
            ),
        )


def linear_of_torch(width, num_heads, head_dim):
    """The same of linear attention."""
    if find_spec("performer_pytorch"):
        import performer_pytorch

        yield (
            "Flow",
            "SelfAttention of performer-pytorch",
            lambda causal: performer_pytorch.SelfAttention(
                width, causal=causal, heads=num_heads, dim_head=head_dim
            ),
        )
