"""SECURITY.md says what is unpickled and what listens; whoever adds to it in the code has to say so there."""

import re

from tests.support import CHECKOUT

PAGE = (CHECKOUT / "SECURITY.md").read_text()
CODE = {
    str(path.relative_to(CHECKOUT)): path.read_text() for path in sorted((CHECKOUT / "ddppo").rglob("*.py"))
}


def files_with(pattern):
    return {name for name, text in CODE.items() if re.search(pattern, text)}


def test_files_that_unpickle_are_named():
    found = files_with(r"\bpickle\.loads?\(")
    assert found
    assert {name for name in found if f"]({name})" not in PAGE} == set()


def test_what_is_loaded_executes_nothing():
    loads = [each for text in CODE.values() for each in re.findall(r"torch\.load\((.*)\)", text)]
    assert loads
    assert [each for each in loads if "weights_only=True" not in each] == []
    assert (
        files_with(r"allow_pickle=True|trust_remote_code|yaml\.(full_load|unsafe_load)|shell=True") == set()
    )
    assert files_with(r"yaml\.load\((?!.*Loader=_LOADER)") == set()


def test_files_that_listen_are_named():
    found = files_with(r"dist\.TCPStore\(|create_server\(|\b(_socket|_listening|end)\.bind\(")
    assert len(found) > 5
    assert {name for name in found if f"]({name})" not in PAGE} == set()
