"""TensorBoard's event files: records with checksums, and the summaries that they hold.

torch.utils.tensorboard imports TensorBoard's file systems, with cloud clients where they are installed, and takes a
fifth of a second at the start of every run. Here TensorBoard's message classes are enough.
"""

import functools
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ddppo.files import free_name


class DamagedRecord(Exception):
    """A record of an event file cannot be read; the message says where."""


class EventFile:
    """A new event file. Each event is in the file when `add` returns, so a killed process leaves no gap in a curve."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names, so the name begins with the time.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = free_name(folder / name).open("xb", buffering=0)
        self._event = Event
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, summary: Any, step: int | None = None) -> None:
        """Write a summary as one event. Raises OSError."""
        self._write(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        record = length + _checksum(length) + content + _checksum(content)
        if self._file.write(record) < len(record):
            raise OSError("the disk took a part of an event only")


def read_events(file: BinaryIO) -> Iterator[tuple[Any, bytes]]:
    """Yield the events of a file with the bytes of their records, without a half-written one at its end.

    Raises DamagedRecord.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    # A record is: uint64 length, checksum of the length, content, checksum of the content.
    while len(header := file.read(12)) == 12:
        if _checksum(header[:8]) != header[8:]:
            raise DamagedRecord(f"byte {file.tell() - 12} begins no record")
        (length,) = struct.unpack("<Q", header[:8])
        body = file.read(length + 4)
        if len(body) < length + 4:
            return
        try:
            event = Event.FromString(body[:length])
        except DecodeError:
            raise DamagedRecord(f"the record before byte {file.tell()} cannot be read") from None
        yield event, header + body


# -- Checksums: CRC-32C (https://www.rfc-editor.org/rfc/rfc3720#appendix-B.4), masked as TensorFlow's records are.

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with the bits reversed
_CHUNK = 512  # bytes in one call of NumPy


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC of some bytes, as four bytes."""
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    # A CRC is linear: that of a chunk is the exclusive or of what each of its bytes contributes at its place. The state
    # of the chunk before is added to the first four bytes.
    state = 0xFFFFFFFF
    for start in range(0, len(content), _CHUNK):
        part = np.frombuffer(content[start : start + _CHUNK], np.uint8).astype(np.intp)
        num_mixed = min(4, len(part))
        part[:num_mixed] ^= np.frombuffer(struct.pack("<I", state), np.uint8)[:num_mixed]
        part += np.arange(_CHUNK - len(part), _CHUNK) * 256
        state = int(np.bitwise_xor.reduce(_contributions()[part])) ^ state >> 8 * num_mixed
    return state ^ 0xFFFFFFFF


@functools.cache
def _contributions() -> np.ndarray:
    """Return the contribution of each byte at each place of a chunk, `[_CHUNK * 256]`."""
    # The last byte's: eight steps of the shift register. A byte further ahead is followed by one more byte of zeros.
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = np.where(last & 1, last >> 1 ^ _POLYNOMIAL, last >> 1).astype(np.uint32)
    rows = [last]
    while len(rows) < _CHUNK:
        rows.append(rows[-1] >> 8 ^ last[rows[-1] & 255])
    return np.concatenate(rows[::-1])


# -- Summaries.


def scalars(values: Mapping[str, float]) -> Any:
    """Return numbers, by tag, as one summary."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])


def text(tag: str, content: str) -> Any:
    """Return Markdown as a summary."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    tensor = TensorProto(
        dtype="DT_STRING", string_val=[content.encode()], tensor_shape={"dim": [{"size": 1}]}
    )
    return Summary(
        value=[Summary.Value(tag=f"{tag}/text_summary", tensor=tensor, metadata=_metadata("text"))]
    )


def picture(tag: str, pixels: np.ndarray) -> Any:
    """Return a picture, uint8 `[height, width, 3]`, as a summary."""
    from torch.utils.tensorboard.summary import image

    return image(tag, pixels, dataformats="HWC")


def chart_pages(pages: Mapping[str, Mapping[str, Sequence[str]]]) -> Any:
    """Return the layout of the Custom Scalars tab as a summary: page -> chart -> tags."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent

    layout = Layout(
        category=[
            Category(
                title=page,
                chart=[
                    Chart(title=name, multiline=MultilineChartContent(tag=tags))
                    for name, tags in charts.items()
                ],
            )
            for page, charts in pages.items()
        ]
    )
    tensor = TensorProto(dtype="DT_STRING", string_val=[layout.SerializeToString()], tensor_shape={})
    metadata = _metadata("custom_scalars")
    return Summary(value=[Summary.Value(tag="custom_scalars__config__", tensor=tensor, metadata=metadata)])


def hparams(
    settings: Mapping[str, str | float], metrics: Sequence[str], first: Sequence[str] = ()
) -> tuple[Any, Any, Any]:
    """Return three summaries of the HPARAMS tab: its columns, the settings at the start of a run, the run's end.

    first: the settings that the tab shows before the others, which it sorts by name.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.api_pb2 import (
        DATA_TYPE_FLOAT64,
        DATA_TYPE_STRING,
        STATUS_SUCCESS,
        Experiment,
        HParamInfo,
        MetricInfo,
        MetricName,
    )
    from tensorboard.plugins.hparams.plugin_data_pb2 import (
        HParamsPluginData,
        SessionEndInfo,
        SessionStartInfo,
    )

    # 1. The columns.
    columns = Experiment(
        hparam_infos=[
            HParamInfo(
                name=name,
                type=DATA_TYPE_STRING if isinstance(value, str) else DATA_TYPE_FLOAT64,
                differs=name in first,  # the tab begins with what differs between runs
            )
            for name, value in settings.items()
        ],
        metric_infos=[MetricInfo(name=MetricName(tag=name)) for name in metrics],
    )
    # 2. The run's settings.
    start = SessionStartInfo()
    for name, value in settings.items():
        if isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value

    # 3. As metadata of empty values, which is how the tab finds them.
    def summary(name: str, content: Any) -> Any:
        metadata = _metadata("hparams", content.SerializeToString())
        return Summary(value=[Summary.Value(tag=f"_hparams_/{name}", metadata=metadata)])

    return (
        summary("experiment", HParamsPluginData(experiment=columns)),
        summary("session_start_info", HParamsPluginData(session_start_info=start)),
        summary(
            "session_end_info",
            HParamsPluginData(session_end_info=SessionEndInfo(status=STATUS_SUCCESS)),
        ),
    )


def _metadata(plugin: str, content: bytes = b"") -> Any:
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

    return SummaryMetadata(plugin_data={"plugin_name": plugin, "content": content})
