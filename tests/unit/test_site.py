"""The pages as a site: whoever opens it finds them all."""

import importlib.util
import re

import yaml

from ddppo.config.help import all_names
from ddppo.config.settings import config_class
from tests.support import CHECKOUT

MADE = {"docs/settings.md", "docs/api.md"}  # by docs/reference.py, when the site is built


def places(nav):
    for entry in nav:
        for place in entry.values():
            yield from places(place) if isinstance(place, list) else [place]


def test_every_page_is_in_the_menu_once_and_is_there():
    listed = list(places(yaml.safe_load((CHECKOUT / "docs" / "site.yml").read_text())["nav"]))
    pages = {str(page.relative_to(CHECKOUT)) for page in (CHECKOUT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | {"README.md"} | MADE


def test_the_reference_has_every_setting_and_every_public_name():
    spec = importlib.util.spec_from_file_location("reference", CHECKOUT / "docs" / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    settings = re.findall(r"^\| `([\w.]+)` \|", reference.settings_page(), re.MULTILINE)
    unsaid = {"env.preset_kwargs", "env.record_dir"}
    assert set(all_names(config_class())) - set(settings) <= unsaid
    assert len(settings) > 200
    api = reference.api_page()
    names = [path.split(":")[1] for paths in reference.PUBLIC.values() for path in paths]
    parts = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", api, re.DOTALL | re.MULTILINE))
    assert [
        name for name in names if not re.search(r"```python\n.*?```\n\n[A-Z]", parts[name], re.DOTALL)
    ] == []


def test_every_page_opens_with_what_it_answers():
    """A heading, then within eight lines a sentence: on the site, in a search and on a code host it is read first."""
    for page in [*sorted((CHECKOUT / "docs").rglob("*.md")), CHECKOUT / "README.md"]:
        lines = page.read_text().splitlines()
        assert lines[0].startswith("# "), page
        assert any(re.match(r"[A-Z`*\[].{40,}", line) for line in lines[1:9]), page
