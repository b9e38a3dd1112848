"""What the torch backend writes: each signature by torch.export, then in a format."""

import contextlib
import io
import warnings

import keras

# A program is made from inputs of these sizes where any will do: not of 1, which
# torch.export would keep.
BATCH_SIZE, LENGTH = 3, 21


def write_several(model, signatures, path):
    """A LiteRT file with all signatures."""
    converter = _import("litert_torch", "litert")
    for name, signature in signatures.items():
        converter = converter.signature(
            name, _by_name(model, signature), sample_kwargs=_examples(signature)
        )
    with _quietly(), _kept_x64():
        converter.convert().export(str(path))


def write_one(model, signature, path, format):
    """A file of `"torch"`, `"onnx"` or `"openvino"` with one signature."""
    import torch

    program = _program(model, signature)
    if format == "torch":
        torch.export.save(program, str(path))
    elif format == "onnx":
        _import("onnxscript", "onnx")
        with _quietly():
            torch.onnx.export(
                program,
                f=str(path),
                input_names=list(signature.specs),
                output_names=_output_names(program, signature),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    else:
        openvino = _import("openvino", "openvino")
        found = openvino.convert_model(program)
        shapes = {}
        for (name, (shape, _)), place in zip(signature.specs.items(), found.inputs):
            place.tensor.set_names({name})
            shapes[name] = [-1 if size is None else size for size in shape]
        found.reshape(shapes)  # it takes all sizes for unknown
        for name, place in zip(_output_names(program, signature), found.outputs):
            place.tensor.set_names({name})
        openvino.save_model(found, str(path), compress_to_fp16=False)


def _output_names(program, signature):
    return [signature.next_name(name) for name in program.call_spec.out_spec.context]


def _module(model, signature):
    """A function of one dict."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model  # its weights are tracked

        def forward(self, given):
            return signature.function(given)

    return Module().eval()


def _by_name(model, signature):
    """A function of named tensors, after which LiteRT calls its inputs."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = _module(model, signature)

        def forward(self, **given):
            return self.inner(given)

    return Module().eval()


def _examples(signature):
    """Inputs of a signature, all ones."""
    sizes = BATCH_SIZE, LENGTH
    return {
        name: keras.ops.ones(
            [sizes[axis] if n is None else n for axis, n in enumerate(shape)], dtype
        )
        for name, (shape, dtype) in signature.specs.items()
    }


def _program(model, signature):
    """The signature as a `torch.export.ExportedProgram`."""
    import torch
    from torch.fx.experimental import _config

    dynamic = {
        name: {
            axis: torch.export.Dim.DYNAMIC for axis, n in enumerate(shape) if n is None
        }
        for name, (shape, _) in signature.specs.items()
    }
    # Otherwise a size that may be any is held to be none of 0 and 1, and so is all
    # that is made of it: the number of chunks, and how much of the last is empty.
    any_size = _config.patch(backed_size_oblivious=True)
    with _quietly(), torch.no_grad(), any_size:
        return torch.export.export(
            _module(model, signature),
            (_examples(signature),),
            dynamic_shapes=(dynamic,),
            strict=False,
        )


def _import(name, format):
    try:
        return __import__(name)
    except ImportError as error:
        package = name.replace("_", "-")
        raise ImportError(
            f"{format!r} on torch needs {package}: pip install {package}"
        ) from error


@contextlib.contextmanager
def _quietly():
    """The exporters tell of each step."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _kept_x64():
    """litert_torch turns 64 bits on for all of JAX, and works with them alone."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
