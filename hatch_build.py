"""What goes into a wheel besides the files of ddppo/: the presets, and the compiled part of ddppo.collectives.

Without a compiler, or where it fails, that is built at first use, or never. An editable install needs neither: it is
the checkout, which has conf/ and builds at first use.
"""

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WhatElse(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder: Path | None = None
        if version == "editable":
            return
        build_data["force_include"]["conf"] = "ddppo/conf"
        if sys.platform != "linux":
            return
        compiled = _module(Path(self.root) / "ddppo" / "native" / "compiling.py")
        try:
            self.folder = Path(tempfile.mkdtemp())
            library = self.folder / compiled.SHARED_MEMORY.file_name
            compiled.SHARED_MEMORY.build(library)
        except (compiled.NotCompiled, OSError) as e:  # a compiler that cannot be started, a full disk
            self.app.display_warning(f"ddppo.collectives is not compiled: {e}")
            return
        build_data["force_include"][str(library)] = f"ddppo/collectives/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


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
