"""Trains FLASHMaskedLM on subwords of Shakespeare, and fills in words.

    python examples/masked_lm.py            # a few minutes on two cores
    python examples/masked_lm.py --steps 3  # a smoke run

15% of the tokens are to be found from both sides. Needs the extra `nlp`.
examples/README.md has the number to expect.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import language_model
import numpy as np
import train_flash_lm

from keras_flash import FLASHBackbone
from keras_flash import FLASHMaskedLM
from keras_flash import FLASHMaskedLMPreprocessor

SENTENCES = [
    "Good night, good night! Parting is such sweet _.",
    "My lord, the _ is dead.",
]


def fill_in(masked_lm, sentence, count=5):
    """The most likely tokens at the blank."""
    preprocessor = masked_lm.preprocessor
    before, after = (
        [int(token) for token in preprocessor.tokenizer(part.strip())]
        for part in sentence.split("_")
    )
    row = [*before, preprocessor.mask_token_id, *after]
    inputs = {
        "token_ids": np.array([row], "int32"),
        "padding_mask": np.ones((1, len(row)), "int32"),
        "mask_positions": np.array([[len(before)]], "int32"),
    }
    logits = keras.ops.convert_to_numpy(masked_lm(inputs))[0, 0]
    best = np.argsort(-logits)[:count]
    return [preprocessor.tokenizer.id_to_token(int(token)) for token in best]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=train_flash_lm.STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(arguments.seed)
    text, held_out = language_model.load_text()
    texts = train_flash_lm.documents(text)
    unseen = train_flash_lm.documents(held_out)

    tokenizer = train_flash_lm.train_tokenizer(text)
    preprocessor = FLASHMaskedLMPreprocessor(
        tokenizer,
        mask_token_id=tokenizer.token_to_id(train_flash_lm.MASK),
        pad_token_id=train_flash_lm.PAD,
        sequence_length=train_flash_lm.SEQUENCE_LENGTH,
        mask_selection_length=64,
    )
    backbone = FLASHBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=train_flash_lm.NUM_LAYERS,
        hidden_dim=train_flash_lm.HIDDEN_DIM,
        chunk_size=train_flash_lm.CHUNK_SIZE,
    )
    masked_lm = FLASHMaskedLM(backbone, preprocessor)
    print(f"{keras.backend.backend()}: {masked_lm.count_params():,} parameters")
    on_tensorflow = keras.backend.backend() == "tensorflow"
    masked_lm.compile(
        language_model.optimizer(arguments.steps), jit_compile=on_tensorflow or "auto"
    )
    batch_size = train_flash_lm.BATCH_SIZE
    texts = train_flash_lm.take(texts, arguments.steps, arguments.seed)
    masked_lm.fit(texts, batch_size=batch_size)

    if arguments.steps != train_flash_lm.STEPS:
        unseen = unseen[:batch_size]
    _, accuracy = masked_lm.evaluate(unseen, batch_size=batch_size, verbose=0)
    counts = np.bincount(np.concatenate([np.array(row) for row in tokenizer(unseen)]))
    print(
        f"held out: {100 * accuracy:.1f}% of the masked tokens found; the most "
        f"frequent token alone is {100 * counts.max() / counts.sum():.1f}%\n"
    )
    for sentence in SENTENCES:
        print(sentence, " ".join(fill_in(masked_lm, sentence)))


if __name__ == "__main__":
    main()
