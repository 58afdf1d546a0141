"""The pages as a site: whoever opens it finds them all."""

import yaml

from tests.support import CHECKOUT


def places(nav):
    for entry in nav:
        for place in entry.values():
            yield from places(place) if isinstance(place, list) else [place]


def test_every_page_is_in_the_menu_once_and_is_there():
    listed = list(places(yaml.safe_load((CHECKOUT / "docs" / "site.yml").read_text())["nav"]))
    pages = {str(page.relative_to(CHECKOUT)) for page in (CHECKOUT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | {"README.md"}
