"""File formats of an exported policy: ONNX, or a program of torch.export. Each is written and run here."""

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ddppo.policies.export.portable import Arrays, Portable

Run = Callable[[Arrays], Arrays]  # inputs by name to outputs by name


class Format(NamedTuple):
    """A file format."""

    # Takes the policy, and example inputs of two rows or more.
    write: Callable[[Portable, dict[str, torch.Tensor]], bytes]
    load: Callable[[bytes], Run]  # the result takes any number of rows


def _dimensions(example: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return torch.export's declaration that inputs may have any number of rows."""
    rows = torch.export.Dim("n", min=1, max=2**31 - 1)
    return {"inputs": {name: {0: rows} for name in example}}


def _program(policy: Portable, example: dict[str, torch.Tensor]) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(policy, (example,), dynamic_shapes=_dimensions(example))


def _as_torch(policy: Portable, example: dict[str, torch.Tensor]) -> bytes:
    # torch.export stores stack traces of this machine: remove them.
    content, program = io.BytesIO(), _program(policy, example)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # stack traces name folders of this machine
    torch.export.save(program, content)
    return content.getvalue()


def _run_torch(content: bytes) -> Run:
    program = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = program({name: torch.from_numpy(array) for name, array in inputs.items()})
        return {name: output.numpy() for name, output in outputs.items()}

    return run


def _as_onnx(policy: Portable, example: dict[str, torch.Tensor]) -> bytes:
    with torch.no_grad():
        outputs = list(policy(example))
    program = torch.onnx.export(
        _program(policy, example),
        input_names=list(example),
        output_names=outputs,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return _without_traces(program.model_proto)


def _without_traces(model: Any) -> bytes:
    """Return the file without the exporter's stack traces, which are most of it and name folders of this machine."""
    for graph in (model.graph, *model.functions):
        for item in (graph, *graph.node, *graph.value_info):
            del item.metadata_props[:]
    return model.SerializeToString()


def _run_onnx(content: bytes) -> Run:
    import onnxruntime

    # The CPU provider gives the same numbers everywhere.
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        return dict(zip(names, (np.asarray(x) for x in session.run(names, inputs)), strict=True))

    return run


FORMATS = {
    "onnx": Format(_as_onnx, _run_onnx),
    "torch": Format(_as_torch, _run_torch),
}


def written(policy: Portable, format: str, example: Arrays) -> bytes:
    """Return the bytes of a file of `format`, a key of FORMATS. example: inputs of two rows or more."""
    # The exporter warns that torchvision is missing, which a policy does not need.
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the exporters about their own code
            return FORMATS[format].write(policy, {name: torch.from_numpy(x) for name, x in example.items()})
    finally:
        logger.setLevel(level)
