"""Trains FLASHCausalLM on subwords of Shakespeare: strings in, strings out.

    python examples/train_flash_lm.py            # a few minutes on two cores
    python examples/train_flash_lm.py --steps 3  # a smoke run

The model of the demo with keras-hub around it: a SentencePiece tokenizer trained on
the text, `fit` and `evaluate` on strings, and `generate` from a state of constant
size. Needs the extra `nlp`. examples/README.md has the number to expect.
"""

import argparse
import io
import math
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import keras_hub
import language_model
import numpy as np
import sentencepiece

from keras_flash import FLASHBackbone
from keras_flash import FLASHCausalLM
from keras_flash import FLASHCausalLMPreprocessor

VOCABULARY_SIZE = 2_000
TOKENIZER_BYTES = 1_000_000  # of the text, for the tokenizer to be trained on
HIDDEN_DIM = 128
NUM_LAYERS = 4
CHUNK_SIZE = 128
SEQUENCE_LENGTH = 256  # tokens, of about three bytes each
PAD = 3
MASK = "[MASK]"  # for masked_lm.py
DOCUMENT = 1_000  # bytes, more than SEQUENCE_LENGTH tokens: no batch holds padding
BATCH_SIZE = 8
STEPS = 600
PROMPTS = ["To be, or not to be", "My lord,"]
GENERATED = 400  # tokens, far more than the model was trained at


def documents(text, size=DOCUMENT):
    """The text in pieces, as strings. Line breaks are spaces to the tokenizer."""
    count = len(text) // size
    pieces = text[: count * size].reshape(count, size)
    return [bytes(piece).decode("latin-1") for piece in pieces]


def train_tokenizer(text):
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents(text[:TOKENIZER_BYTES])),
        model_writer=proto,
        vocab_size=VOCABULARY_SIZE,
        pad_id=PAD,
        user_defined_symbols=[MASK],
        minloglevel=2,
    )
    return keras_hub.tokenizers.SentencePieceTokenizer(proto=proto.getvalue())


def bytes_a_token(tokenizer, texts):
    return sum(map(len, texts)) / sum(len(row) for row in tokenizer(texts))


def take(texts, steps, seed):
    """As many texts as the steps need, in any order."""
    generator, needed = np.random.default_rng(seed), steps * BATCH_SIZE
    order = [generator.permutation(len(texts)) for _ in range(1 + needed // len(texts))]
    return [texts[i] for i in np.concatenate(order)[:needed]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(arguments.seed)
    text, held_out = language_model.load_text()
    texts, unseen = documents(text), documents(held_out)

    tokenizer = train_tokenizer(text)
    preprocessor = FLASHCausalLMPreprocessor(
        tokenizer, SEQUENCE_LENGTH, pad_token_id=PAD
    )
    backbone = FLASHBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=NUM_LAYERS,
        hidden_dim=HIDDEN_DIM,
        chunk_size=CHUNK_SIZE,
        causal=True,
    )
    causal_lm = FLASHCausalLM(backbone, preprocessor)
    print(f"{keras.backend.backend()}: {causal_lm.count_params():,} parameters")
    on_tensorflow = keras.backend.backend() == "tensorflow"
    causal_lm.compile(
        language_model.optimizer(arguments.steps),
        sampler=keras_hub.samplers.TopPSampler(0.9, seed=arguments.seed),
        jit_compile=on_tensorflow or "auto",
    )
    causal_lm.fit(take(texts, arguments.steps, arguments.seed), batch_size=BATCH_SIZE)

    unseen = unseen if arguments.steps == STEPS else unseen[:BATCH_SIZE]
    loss, accuracy = causal_lm.evaluate(unseen, batch_size=BATCH_SIZE, verbose=0)
    a_token = loss / math.log(2)
    a_byte = a_token / bytes_a_token(tokenizer, unseen)
    print(
        f"held out: {a_token:.3f} bits a token, {a_byte:.3f} bits a byte, "
        f"{100 * accuracy:.1f}% of the next tokens right\n"
    )
    for written in causal_lm.generate(PROMPTS, max_length=GENERATED):
        print(written, "\n")


if __name__ == "__main__":
    main()
