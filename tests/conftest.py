import gc
import pathlib
import sys

import keras
import pytest

for scripts in ("examples", "benchmarks"):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / scripts))


@pytest.fixture(autouse=True)
def _fresh():
    # Keras collects garbage when a layer loses a weight, as each quantized one does;
    # that looks at all there is, for a fifth of a second, unless it is set aside.
    gc.collect()
    gc.freeze()
    keras.utils.set_random_seed(7)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def run_example(monkeypatch, capsys):
    """Calls an example with arguments, and other constants; gives what it prints."""

    def call(script, *arguments, **constants):
        for name, value in constants.items():
            assert hasattr(script, name)
            monkeypatch.setattr(script, name, value)
        monkeypatch.setattr(sys, "argv", [script.__file__, *map(str, arguments)])
        script.main()
        return capsys.readouterr().out

    return call


LONGEST = ("test_examples.py", "test_interchange.py")


def pytest_collection_modifyitems(items):
    """The longest tests come first, so that no worker is left alone with them.

    Tests of one kind of layer share a worker, and there what JAX has compiled.
    """
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        if hasattr(item, "callspec"):
            parameters = item.callspec.params
            group = parameters.get("name") or parameters.get("family")
            if group:
                group = "-".join(str(group).split("-")[:2])
                item.add_marker(pytest.mark.xdist_group(group))
