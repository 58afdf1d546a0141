"""Builds the compiled part of ddppo.collectives into a wheel; without a compiler it is built at first use, or never."""

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledPart(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or sys.platform != "linux":
            return
        compiled = _module(Path(self.root) / "ddppo" / "native" / "compiling.py")
        library = Path(tempfile.mkdtemp()) / compiled.SHARED_MEMORY.file_name
        try:
            compiled.SHARED_MEMORY.build(library)
        except (compiled.NotCompiled, OSError) as e:
            self.app.display_warning(f"ddppo.collectives is not compiled: {e}")
            return
        build_data["force_include"][str(library)] = f"ddppo/collectives/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    from packaging.tags import sys_tags

    return next(tag.platform for tag in sys_tags() if "manylinux" not in tag.platform)


def _module(path: Path) -> Any:
    """Load a file that imports nothing of its package, which is not installed yet."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
