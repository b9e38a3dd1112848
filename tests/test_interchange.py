"""A file written on any backend gives the same outputs on every other."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import interchange
from tests.helpers import BACKEND


@pytest.mark.parametrize("writer", ["tensorflow", "jax", "torch"])
def test_saved_model_of_every_layer(writer, tmp_path):
    if writer == BACKEND:
        interchange.write(tmp_path)
    else:
        command = [sys.executable, "-m", "tests.interchange", "write", str(tmp_path)]
        subprocess.run(
            command,
            env={**os.environ, "KERAS_BACKEND": writer},
            cwd=pathlib.Path(__file__).parents[1],
            check=True,
        )
    assert interchange.largest_error(tmp_path) < 1e-5
