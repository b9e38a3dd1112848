"""The public face: names, imports, versions."""

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_flash
from tests.helpers import BACKEND

PACKAGE = pathlib.Path(keras_flash.__file__).parent
LAYERS = [
    "FlowAttention",
    "GatedAttentionUnit",
    "MixedChunkAttention",
    "RelativePositionBias",
    "ScaleNorm",
    "ScaleOffset",
    "SinePositionEncoding",
]
MODELS = [
    "FlowformerClassifier",
    "FlowformerDecisionModel",
    "FlowformerImageClassifier",
    "StreamingModel",
]
TEXT_MODELS = [
    "FLASHBackbone",
    "FLASHCausalLM",
    "FLASHCausalLMPreprocessor",
    "FLASHMaskedLM",
    "FLASHMaskedLMPreprocessor",
    "FLASHTextClassifier",
    "FLASHTextClassifierPreprocessor",
    "FlowformerBackbone",
    "FlowformerCausalLM",
    "FlowformerCausalLMPreprocessor",
]


def test_public_names():
    assert keras_flash.layers.__all__ == LAYERS
    assert keras_flash.models.__all__ == [*MODELS, "export"]
    assert list(keras_flash.models.TEXT_MODELS) == TEXT_MODELS
    assert set(TEXT_MODELS) <= set(dir(keras_flash)) & set(dir(keras_flash.models))
    assert keras_flash.__all__ == [
        *sorted(LAYERS + MODELS),
        *("export", "layers", "models"),
    ]
    for name in LAYERS + MODELS:
        home = keras_flash.layers if name in LAYERS else keras_flash.models
        assert getattr(keras_flash, name) is getattr(home, name)
        assert getattr(keras_flash, name).__doc__.count("Example:") == 1


def test_no_keras_internals():
    for path in PACKAGE.rglob("*.py"):
        assert "keras.src" not in path.read_text(), path


def test_imports_go_one_way():
    """models -> layers -> ops -> keras."""
    above = {"ops": ("layers", "models"), "layers": ("models",)}
    for floor, others in above.items():
        for path in (PACKAGE / floor).glob("*.py"):
            for other in others:
                assert f"keras_flash.{other}" not in path.read_text(), path


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the same process on any backend")
def test_import_adds_nothing_but_keras():
    code = (
        "import sys, keras; before = set(sys.modules); import keras_flash; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "['keras_flash']"


@pytest.mark.parametrize("name", LAYERS + MODELS)
def test_docstring_example_runs(name):
    example = getattr(keras_flash, name).__doc__.split("Example:")[1]
    lines = [line.strip() for line in example.splitlines()]
    lines = [line[4:] for line in lines if line[:3] in (">>>", "...")]
    assert lines
    public = {name: getattr(keras_flash, name) for name in LAYERS + MODELS}
    exec("\n".join(lines), {"keras": keras, "np": np, **public})
