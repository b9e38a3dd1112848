import keras
import pytest


@pytest.fixture(autouse=True)
def _fresh():
    keras.utils.set_random_seed(7)
    yield
    keras.config.set_dtype_policy("float32")


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
