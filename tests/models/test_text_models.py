"""The text models: generation from a state, keras-hub's interface, errors."""

import functools
import re
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest

import keras_flash
from keras_flash.models import TEXT_MODELS
from tests.helpers import error
from tests.helpers import run
from tests.helpers import set_weights
from tests.helpers import to_numpy

CORPUS = [
    "the cat sat on the mat. ",
    "a dog ate the red hat; ",
    "my rat is fat, not mad. ",
]
LENGTH = 24  # trained at
BYTES = dict(vocabulary_size=128, num_layers=2, hidden_dim=32)
FLASH = dict(BYTES, key_dim=16, chunk_size=8)
QUAD = dict(BYTES, key_dim=16, attention="gated_attention_unit")
FLOW = dict(BYTES, num_heads=2, intermediate_dim=64, dropout=0.0)
KINDS = {
    "flash": (keras_flash.FLASHBackbone, keras_flash.FLASHCausalLM, FLASH),
    "quad": (keras_flash.FLASHBackbone, keras_flash.FLASHCausalLM, QUAD),
    "flow": (keras_flash.FlowformerBackbone, keras_flash.FlowformerCausalLM, FLOW),
}
each_kind = pytest.mark.parametrize("name", [f"Text-{kind}" for kind in KINDS])


def tokenizer():
    return keras_hub.tokenizers.ByteTokenizer(lowercase=False)


def make(name, **more):
    backbone_class, task_class, options = KINDS[name.removeprefix("Text-")]
    backbone = backbone_class(**{**options, **more}, causal=True)
    preprocessor = task_class.preprocessor_cls(tokenizer(), sequence_length=LENGTH)
    return task_class(backbone, preprocessor)


@functools.cache
def trained(name):
    """Knows its corpus by heart, so that the best token stands out."""
    keras.utils.set_random_seed(3)
    causal_lm = make(name)
    causal_lm.compile(keras.optimizers.Adam(1e-2), weighted_metrics=[])
    causal_lm.fit(CORPUS * 16, batch_size=12, epochs=25, verbose=0)
    return causal_lm


def ids_of(texts):
    rows = [list(text.encode()) for text in texts]
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, values in zip(ids, rows):
        row[: len(values)] = values
    return ids


def logits_of(causal_lm, texts):
    ids = ids_of(texts)
    return run(causal_lm, {"token_ids": ids, "padding_mask": (ids > 0).astype("int32")})


@each_kind
def test_prompts_of_different_lengths_give_what_each_gives_alone(name):
    causal_lm = trained(name)
    causal_lm.compile(sampler="greedy")
    prompts = ["t", "a dog ate", "my rat is f", "the c"]
    together = causal_lm.generate(prompts, max_length=40, stop_token_ids=None)
    alone = [
        causal_lm.generate(prompt, max_length=40, stop_token_ids=None)
        for prompt in prompts
    ]
    assert together == alone
    # It is the parallel pass, token by token, and no near tie decides.
    logits = logits_of(causal_lm, together)
    ids = ids_of(together)
    for row, prompt in enumerate(prompts):
        for place in range(len(prompt), 40):
            scores = logits[row, place - 1]
            best, second = np.sort(scores)[[-1, -2]]
            assert best - second >= 1e-3
            assert scores.argmax() == ids[row, place]


@each_kind
def test_far_beyond_the_training_length(name):
    causal_lm = trained(name)
    causal_lm.compile(sampler="greedy")
    length = 12 * LENGTH
    text = causal_lm.generate("the", max_length=length, stop_token_ids=None)
    assert len(text) == length
    scores = logits_of(causal_lm, [text])[0, 2:-1]
    best, second = np.sort(scores, axis=-1)[:, [-1, -2]].T
    assert (best - second).min() > 1e-5  # the closest call here, not a near tie
    assert (scores.argmax(axis=-1) == ids_of([text])[0, 3:]).all()


@pytest.mark.parametrize("sampler", ["top_k", "top_p", "beam", "random", "contrastive"])
def test_samplers(sampler):
    causal_lm = trained("Text-flash")
    causal_lm.compile(sampler=sampler)
    prompts = ["the c", "a d"]
    texts = causal_lm.generate(prompts, max_length=30, stop_token_ids=None)
    for text, prompt in zip(texts, prompts):
        assert text.startswith(prompt)
    if sampler == "beam":
        logits = logits_of(causal_lm, texts)
        causal_lm.compile(sampler="greedy")
        greedy = causal_lm.generate(prompts, max_length=30, stop_token_ids=None)
        greedy_logits = logits_of(causal_lm, greedy)
        for row, prompt in enumerate(prompts):
            both = [(logits, texts), (greedy_logits, greedy)]
            found, other = [
                likelihood(x[row], ids_of(y)[row], len(prompt)) for x, y in both
            ]
            assert found >= other - 1e-3


def likelihood(logits, ids, start):
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return sum(logs[place - 1, ids[place]] for place in range(start, len(ids)))


def test_stop_tokens_stop():
    preprocessor = keras_flash.FLASHCausalLMPreprocessor(
        tokenizer(), LENGTH, end_token_id=ord(".")
    )
    causal_lm = keras_flash.FLASHCausalLM(trained("Text-flash").backbone, preprocessor)
    causal_lm.compile(sampler="greedy")
    # "auto" is the preprocessor's end token, and special tokens are no text.
    assert causal_lm.generate("the c", max_length=60) == "the cat sat on the mat"
    texts = causal_lm.generate(["the c", "a dog"], max_length=60, stop_token_ids=[32])
    assert texts == ["the cat ", "a dog "]
    texts = causal_lm.generate(["the c"], max_length=60, strip_prompt=True)
    assert texts == ["at sat on the mat"]
    # Without a preprocessor: tokens in, tokens and a mask out.
    bare = type(causal_lm)(causal_lm.backbone)
    bare.compile(sampler="greedy")
    ids = np.zeros((1, 30), "int32")
    ids[0, :5] = list(b"the c")
    inputs = {"token_ids": ids, "padding_mask": (ids > 0).astype("int32")}
    outputs = bare.generate(inputs, stop_token_ids=[ord(".")])
    kept = outputs["token_ids"][0][outputs["padding_mask"][0].astype(bool)]
    assert bytes(kept.tolist()) == b"the cat sat on the mat."
    assert (outputs["token_ids"] >= 0).all()
    # Padding behind the prompt is no stop token, even of the same id.
    same = bare.generate(inputs, stop_token_ids=[0])
    unstopped = bare.generate(inputs, stop_token_ids=[])
    assert (same["token_ids"] == unstopped["token_ids"]).all()
    assert unstopped["padding_mask"].all()
    with pytest.raises(ValueError, match=r"a dict of token_ids and padding_mask\. Rec"):
        bare.generate({"token_ids": ids}, stop_token_ids=None)


@each_kind
def test_stream_equals_one_call(name):
    causal_lm = trained(name)
    ids = ids_of([CORPUS[0], CORPUS[1]])
    whole = run(causal_lm, {"token_ids": ids, "padding_mask": np.ones_like(ids)})
    state, pieces = causal_lm.get_initial_state(2, max_length=LENGTH), []
    for piece in np.split(ids, [1, 2, 9], axis=1):
        logits, state = causal_lm.stream(piece, state)
        pieces.append(to_numpy(logits))
    assert error(np.concatenate(pieces, axis=1), whole) < 2e-5


def test_the_state_does_not_grow():
    def size(name, max_length):
        state = make(name).get_initial_state(1, max_length)
        return sum(np.prod(x.shape) for x in keras.tree.flatten(state))

    for name in ("Text-flash", "Text-flow"):
        assert size(name, 10) == size(name, 100_000)
    assert size("Text-quad", 20) > 1.9 * size("Text-quad", 10)


@each_kind
def test_a_compiled_model_streams(name, monkeypatch):
    """On torch as one graph, beside TensorFlow, which keras-hub imports."""
    if keras.backend.backend() == "torch":
        import torch

        compile = functools.partial(torch.compile, backend="eager")
        monkeypatch.setattr(torch, "compile", compile)
    causal_lm = trained(name)
    ids = ids_of(CORPUS[:1])
    whole = run(causal_lm, {"token_ids": ids, "padding_mask": np.ones_like(ids)})
    streaming = keras_flash.StreamingModel(causal_lm, jit_compile=True)
    state = streaming.get_initial_state(1, max_length=4)
    for place in range(4):
        piece = ids[:, place : place + 1]
        inputs = {"token_ids": piece, "padding_mask": np.ones_like(piece)}
        logits, state = streaming.stream(inputs, state)
        assert error(logits, whole[:, place : place + 1]) < 2e-5


def test_bad_prompts():
    causal_lm = trained("Text-flash")
    causal_lm.compile(sampler="greedy")
    with pytest.raises(ValueError, match=r"at least one token .*Received: an empty"):
        causal_lm.generate(["the", ""], max_length=30)
    with pytest.raises(
        ValueError, match=r"`max_length` .* Received: max_length=5, a p"
    ):
        causal_lm.generate("the cat", max_length=5)
    with pytest.raises(ValueError, match=rf"max_length={LENGTH}, a prompt of 30 tok"):
        causal_lm.generate("a" * 30)
    bare = type(causal_lm)(causal_lm.backbone)
    ids, mask = np.full((2, 9), 7, "int32"), np.ones((2, 9), "int32")
    mask[:, 4:] = 0

    def generate(**changed):
        inputs = {"token_ids": ids, "padding_mask": mask, **changed}
        return bare.generate(inputs, stop_token_ids=None)

    generate()
    for wrong in (128, -1):
        changed = ids.copy()
        changed[0, 2] = wrong
        with pytest.raises(ValueError, match=rf"from 0 to 127. Received: .*{wrong}"):
            generate(token_ids=changed)
    changed = mask.copy()
    changed[1] = 0
    with pytest.raises(
        ValueError, match=r"Each prompt must .* Received: lengths=\[4, 0"
    ):
        generate(padding_mask=changed)
    changed = mask.copy()
    changed[0, 1] = 0
    with pytest.raises(
        ValueError, match=r"`padding_mask` must be 1 for the prompt.*Rec"
    ):
        generate(padding_mask=changed)
    state = causal_lm.get_initial_state(2)
    with pytest.raises(
        ValueError, match=r"batch size of `inputs`, 1\. Received: state"
    ):
        causal_lm.stream(ids[:1], state)
    other = trained("Text-flow").get_initial_state(2)
    with pytest.raises(ValueError, match=r"of this .* Received: state"):
        causal_lm.stream(ids, other)


def test_bad_arguments():
    options = {**FLASH, "causal": True}
    backbone_class = keras_flash.FLASHBackbone
    for name, wrong in (
        ("vocabulary_size", 0),
        ("num_layers", 1.5),
        ("hidden_dim", None),
        ("attention", "flash"),
        ("causal", 1),
        ("chunk_size", 0),
        ("key_dim", 0),
        ("dropout", 1.0),
        ("remat", 1),
    ):
        with pytest.raises(ValueError, match=rf"`{name}` must .* Received: {name}="):
            backbone_class(**{**options, name: wrong})
    with pytest.raises(ValueError, match=r"`chunk_size` has no meaning without chunks"):
        backbone_class(**{**QUAD, "chunk_size": 8})
    for name, wrong in (
        ("num_heads", 0),
        ("intermediate_dim", None),
        ("hidden_dim", 31),
        ("dropout", -0.1),
        ("remat", None),
    ):
        with pytest.raises(ValueError, match=rf"`{name}` must .* Received: {name}="):
            keras_flash.FlowformerBackbone(**{**FLOW, name: wrong})
    full = backbone_class(**FLASH)
    with pytest.raises(
        ValueError, match=r"`backbone` must be causal .* Received: back"
    ):
        keras_flash.FLASHCausalLM(full)
    with pytest.raises(ValueError, match=r"`backbone` must see both sides .* Received"):
        keras_flash.FLASHMaskedLM(backbone_class(**options))
    with pytest.raises(
        ValueError, match=r"`num_classes` must .* Received: num_classes="
    ):
        keras_flash.FLASHTextClassifier(full, num_classes=0)
    with pytest.raises(ValueError, match=r"`mask_token_id` must be given .* Received"):
        keras_flash.FLASHMaskedLMPreprocessor(tokenizer())
    with pytest.raises(ValueError, match=r"`load_weights` must be False .* Received"):
        backbone_class.from_preset("flash_112m")


@each_kind
def test_remat(name):
    """Trained by `fit`, dropout and all, it is the same model."""
    losses = []
    for remat in (False, True):
        keras.utils.set_random_seed(3)
        causal_lm = make(name, dropout=0.2, remat=remat)
        causal_lm.compile(keras.optimizers.Adam(1e-2), weighted_metrics=[])
        losses += causal_lm.fit(CORPUS, epochs=4, verbose=0).history["loss"][-1:]
    assert losses[0] < 4.5  # of 4.85, the log of 128
    assert abs(losses[1] - losses[0]) < 1e-4
    backbone = causal_lm.backbone
    assert backbone.from_config(backbone.get_config()).remat


@each_kind
def test_presets_and_files(name, tmp_path):
    """What keras-hub users do: a folder and back, a `.keras` file and back."""
    causal_lm = trained(name)
    ids = ids_of(CORPUS)
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    wanted = run(causal_lm, inputs)
    causal_lm.save_to_preset(str(tmp_path / "preset"))
    loaded = type(causal_lm).from_preset(str(tmp_path / "preset"))
    assert error(run(loaded, inputs), wanted) < 1e-6
    config = loaded.preprocessor.get_config()
    assert config["pad_token_id"] == 0
    assert config["sequence_length"] == LENGTH
    backbone_class = KINDS[name.removeprefix("Text-")][0]
    backbone = backbone_class.from_preset(str(tmp_path / "preset"))
    assert backbone.get_config() == causal_lm.backbone.get_config()
    path = tmp_path / "model.keras"
    causal_lm.save(path)
    loaded = keras.saving.load_model(path, compile=False)
    assert error(run(loaded, inputs), wanted) < 1e-6


@each_kind
def test_lora_and_quantization(name, tmp_path):
    causal_lm = make(name)
    set_weights(causal_lm, scale=0.1)
    ids = ids_of(CORPUS)
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    wanted = run(causal_lm, inputs)
    causal_lm.backbone.enable_lora(2)
    paths = [w.path for w in causal_lm.trainable_variables]
    factors = [path for path in paths if "lora" in path]
    assert len(factors) == 2 * 2 * 2  # two for each of two sublayers of two blocks
    assert all(path.endswith("dense/bias") for path in set(paths) - set(factors))
    assert error(run(causal_lm, inputs), wanted) < 1e-6
    causal_lm = make(name)
    set_weights(causal_lm, scale=0.1)
    causal_lm.quantize("int8")
    quantized = run(causal_lm, inputs)
    assert 1e-5 < error(quantized, wanted) < 0.1
    causal_lm.save_to_preset(str(tmp_path / "int8"))
    loaded = type(causal_lm).from_preset(str(tmp_path / "int8"))
    assert error(run(loaded, inputs), quantized) < 1e-6
    loaded.compile(sampler="greedy")
    assert loaded.generate("the", max_length=12).startswith("the")


@each_kind
def test_mixed_precision(name):
    backbone_class, task_class, options = KINDS[name.removeprefix("Text-")]
    backbone = backbone_class(**options, causal=True, dtype="mixed_bfloat16")
    causal_lm = task_class(backbone)
    assert causal_lm.dtype_policy.name == "mixed_bfloat16"
    causal_lm.set_weights(trained(name).get_weights())
    ids = ids_of(CORPUS)
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    wanted = run(trained(name), inputs)
    assert error(run(causal_lm, inputs), wanted) < 5e-2
    causal_lm.compile(sampler="greedy")
    ids[:, 12:] = 0
    inputs = {"token_ids": ids, "padding_mask": (ids > 0).astype("int32")}
    outputs = causal_lm.generate(inputs, stop_token_ids=None)["token_ids"]
    assert bytes(outputs[0].tolist()).decode() == CORPUS[0]
    again = backbone_class.from_config(backbone.get_config())
    assert again.dtype_policy.name == "mixed_bfloat16"


def subword(kind):
    """A trained tokenizer of keras-hub and its special tokens."""
    data = (text for text in CORPUS * 4)
    if kind == "sentence_piece":
        import io

        import sentencepiece

        proto = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=data,
            model_writer=proto,
            vocab_size=28,
            model_type="unigram",
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            user_defined_symbols=["[MASK]"],
            minloglevel=2,
        )
        made = keras_hub.tokenizers.SentencePieceTokenizer(proto.getvalue())
        names = "<s>", "</s>", "<pad>", "[MASK]"
    else:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        letters = sorted({letter for text in CORPUS for letter in text} - {" "})
        words += letters + [f"##{letter}" for letter in letters]
        made = keras_hub.tokenizers.WordPieceTokenizer(vocabulary=words)
        names = "[CLS]", "[SEP]", "[PAD]", "[MASK]"
    ids = [made.token_to_id(name) for name in names]
    keys = "start_token_id", "end_token_id", "pad_token_id", "mask_token_id"
    return made, dict(zip(keys, ids))


@pytest.mark.parametrize("kind", ["sentence_piece", "word_piece"])
def test_subword_tokenizers(kind, tmp_path):
    """Fit on strings, generate, masked tokens, labels, and a preset with its files."""
    made, special = subword(kind)
    mask_token_id = special.pop("mask_token_id")
    options = {**FLASH, "vocabulary_size": made.vocabulary_size()}
    preprocessor = keras_flash.FLASHCausalLMPreprocessor(made, LENGTH, **special)
    x, y, weight = preprocessor(CORPUS[:1])
    ids = to_numpy(x["token_ids"])[0].astype(int)
    assert ids[0] == special["start_token_id"]
    length = int(to_numpy(x["padding_mask"])[0].sum())
    assert (to_numpy(y)[0, : length - 1] == ids[1:length]).all()
    assert to_numpy(y)[0, int(to_numpy(weight)[0].sum()) - 1] in (
        special["end_token_id"],
        *ids,
    )
    causal_lm = keras_flash.FLASHCausalLM(
        keras_flash.FLASHBackbone(**options, causal=True), preprocessor
    )
    causal_lm.fit(CORPUS * 2, batch_size=3, verbose=0)
    causal_lm.compile(sampler="greedy")
    text = causal_lm.generate("the cat", max_length=16)
    assert isinstance(text, str)
    assert causal_lm.generate("", max_length=4) is not None  # the start token is one
    causal_lm.save_to_preset(str(tmp_path))
    loaded = keras_flash.FLASHCausalLM.from_preset(str(tmp_path))
    loaded.compile(sampler="greedy")
    assert loaded.generate("the cat", max_length=16) == text

    masked = keras_flash.FLASHMaskedLMPreprocessor(
        made, mask_token_id, sequence_length=32, mask_selection_length=8, **special
    )
    x, y, weight = masked(CORPUS)
    ids, places = (
        to_numpy(x[key]).astype(int) for key in ("token_ids", "mask_positions")
    )
    plain, real = masked.packer(made(CORPUS))
    plain, counted = to_numpy(plain), to_numpy(weight).astype(bool)
    assert (to_numpy(x["padding_mask"]) == to_numpy(real)).all()
    assert counted.any()
    assert (np.take_along_axis(plain, places, 1) == to_numpy(y))[counted].all()
    assert (ids == mask_token_id).any()
    assert not np.isin(to_numpy(y)[counted], list(special.values())).any()
    masked_lm = keras_flash.FLASHMaskedLM(keras_flash.FLASHBackbone(**options), masked)
    masked_lm.fit(CORPUS * 2, batch_size=3, verbose=0)

    labels = keras_flash.FLASHTextClassifierPreprocessor(made, 16, **special)
    classifier = keras_flash.FLASHTextClassifier(masked_lm.backbone, 2, labels)
    classifier.fit(CORPUS[:2], np.array([0, 1]), batch_size=2, verbose=0)
    short = classifier.predict(CORPUS, verbose=0)
    labels = keras_flash.FLASHTextClassifierPreprocessor(made, 40, **special)
    wide = keras_flash.FLASHTextClassifier(masked_lm.backbone, 2, labels)
    wide.set_weights(classifier.get_weights())
    texts = ["the cat", "", CORPUS[1][:9]]  # padding changes nothing, no text is finite
    short = classifier.predict(texts, verbose=0)
    assert error(wide.predict(texts, verbose=0), short) < 1e-5
    config = keras_flash.FLASHTextClassifier.from_config(classifier.get_config())
    assert config.num_classes == 2


@pytest.mark.parametrize("task", ["FLASHTextClassifier", "FLASHMaskedLM"])
def test_quantized_heads_come_back(task, tmp_path):
    """With the layers outside the backbone, and the options of the mode."""
    inputs = {name: np.ones((2, 6), "int32") for name in ("token_ids", "padding_mask")}
    more = {"num_classes": 2} if task == "FLASHTextClassifier" else {}
    if task == "FLASHMaskedLM":
        inputs["mask_positions"] = np.array([[0, 2], [1, 5]], "int32")
    backbone = keras_flash.FLASHBackbone(**FLASH)
    model = getattr(keras_flash, task)(backbone, preprocessor=None, **more)
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    model.quantize(config=config)
    wanted = run(model, inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert error(run(loaded, inputs), wanted) < 1e-6
    backbone.save_to_preset(str(tmp_path))
    again = keras_flash.FLASHBackbone.from_preset(str(tmp_path))
    inputs.pop("mask_positions", None)
    assert error(run(again, inputs), run(backbone, inputs)) < 1e-6


@pytest.mark.parametrize("wrong", [FLASH["vocabulary_size"], -1, 2.0, True, [5, 6]])
def test_special_tokens_are_of_the_vocabulary(wrong):
    message = r"_token_id` must be .* from 0 to 127\. Received: .*_token_id="
    message += re.escape(str(wrong))
    for task, options in (
        (keras_flash.FLASHCausalLM, dict(end_token_id=wrong)),
        (keras_flash.FLASHMaskedLM, dict(mask_token_id=wrong)),
        (keras_flash.FLASHTextClassifier, dict(start_token_id=wrong)),
    ):
        preprocessor = task.preprocessor_cls(tokenizer(), **options)
        causal = task is keras_flash.FLASHCausalLM
        more = {"num_classes": 2} if task is keras_flash.FLASHTextClassifier else {}
        backbone = keras_flash.FLASHBackbone(**FLASH, causal=causal)
        with pytest.raises(ValueError, match=message):
            task(backbone, preprocessor=preprocessor, **more)


def test_parameters_of_the_presets():
    """24 layers of 768: 87.4 M, 32,000 embeddings: 24.6 M; 72 of 1,024: 496 M."""
    backbone = keras_flash.FLASHBackbone.from_preset("flash_112m", load_weights=False)
    assert len(backbone.attention_layers) == 24
    assert backbone.attention_layers[0].chunk_size == 256
    in_layers = sum(layer.count_params() for layer in backbone.attention_layers)
    embeddings = backbone.token_embedding.count_params()
    assert round(in_layers / 1e6, 1) == 87.4
    assert round(embeddings / 1e6, 1) == 24.6
    presets = keras_flash.FLASHBackbone.presets
    assert presets["flash_112m"]["metadata"]["params"] == backbone.count_params()
    one, two = [
        keras_flash.FLASHBackbone.from_preset(
            "flash_496m", load_weights=False, num_layers=num_layers
        )
        for num_layers in (1, 2)
    ]
    assert one.attention_layers[0].chunk_size == 512
    layer = two.count_params() - one.count_params()
    assert presets["flash_496m"]["config"]["num_layers"] == 72
    total = one.count_params() + 71 * layer
    assert presets["flash_496m"]["metadata"]["params"] == total
    assert round(total / 1e6) == 496


def test_a_file_loads_where_only_the_package_is_imported(tmp_path):
    path = tmp_path / "model.keras"
    make("Text-flow").save(path)
    code = (
        "import sys, keras, keras_flash\n"
        f"model = keras.saving.load_model({str(path)!r}, compile=False)\n"
        "print(type(model).__name__, type(model.preprocessor).__name__)\n"
        "assert type(model) is keras_flash.FlowformerCausalLM"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    wanted = "FlowformerCausalLM FlowformerCausalLMPreprocessor"
    assert result.stdout.strip() == wanted


def test_names_load_on_first_use():
    code = "import sys, keras_flash; assert 'keras_hub' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = (
        "import sys; sys.modules['keras_hub'] = None\n"
        "import keras_flash\n"
        "try:\n    keras_flash.FLASHCausalLM\n"
        "except ImportError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    wanted = 'FLASHCausalLM needs keras-hub: pip install "keras-flash[nlp]"'
    assert result.stdout.strip() == wanted
    for name in TEXT_MODELS:
        assert getattr(keras_flash, name) is getattr(keras_flash.models, name)
        assert name in dir(keras_flash)
    with pytest.raises(AttributeError, match="has no attribute 'FLASH'"):
        _ = keras_flash.FLASH
    with pytest.raises(AttributeError, match="has no attribute 'FLASH'"):
        _ = keras_flash.models.FLASH
