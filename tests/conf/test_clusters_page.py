"""The commands and manifests of the page on clusters are what programs that read them understand."""

import copy
import os
import re
import shlex

import pytest
import yaml
from torch.distributed.run import get_args_parser

from ddppo.launch.arguments import prepared_arguments
from tests.conf.kubernetes_schemas import faults
from tests.support import CHECKOUT

PAGE = (CHECKOUT / "docs" / "clusters.md").read_text()
MANIFESTS = {path.name: path for path in sorted((CHECKOUT / "docs" / "kubernetes").glob("*.yaml"))}


def documents(name):
    return list(yaml.safe_load_all(MANIFESTS[name].read_text()))


def of_kind(name, kind):
    return next(document for document in documents(name) if document["kind"] == kind)


def torchruns():
    """Return every torchrun command of the page and of the manifests, as words."""
    found = [
        words for block in re.findall(r"```(?:bash)?\n(.*?)```", PAGE, re.DOTALL) for words in commands(block)
    ]
    found += commands(of_kind("jobset.yaml", "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
                      ["spec"]["containers"][0]["command"][2])  # fmt: skip
    return [*found, of_kind("trainjob.yaml", "TrainJob")["spec"]["trainer"]["command"]]


def commands(text):
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line[line.index("torchrun ") :]) for line in lines if "torchrun --" in line]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_its_schema_allows_and_the_page_names_it(name):
    for document in documents(name):
        assert faults(document) == []
    assert f"kubernetes/{name}" in PAGE


@pytest.mark.parametrize(
    ("name", "kind", "change", "said"),
    [
        ("jobset.yaml", "JobSet", lambda s: s.update(failurPolicy={}), "JobSet.spec knows no failurPolicy"),
        (
            "jobset.yaml",
            "JobSet",
            lambda s: s["failurePolicy"].update(maxRestarts="10"),
            "maxRestarts is no int",
        ),
        ("jobset.yaml", "JobSet", lambda s: s["replicatedJobs"][0].pop("template"), "has no template"),
        ("trainjob.yaml", "TrainJob", lambda s: s.pop("runtimeRef"), "TrainJob.spec has no runtimeRef"),
        ("trainjob.yaml", "TrainJob", lambda s: s["trainer"].update(replicas=4), "trainer knows no replicas"),
    ],
)
def test_a_manifest_with_a_mistake_is_not(name, kind, change, said):
    document = copy.deepcopy(of_kind(name, kind))
    change(document["spec"])
    assert any(said in fault for fault in faults(document))


def test_the_claims_that_pods_mount_are_the_volumes_they_have():
    for name in MANIFESTS:
        text = MANIFESTS[name].read_text()
        assert text.count("claimName: runs") == 1
        assert text.count("mountPath: /runs") == 1
        assert "hydra.run.dir=/runs/" in text


@pytest.mark.skipif(
    not os.access("/", os.W_OK), reason="folders of the page are below /, where this user may make none"
)
def test_torchrun_and_ddppo_train_understand_every_command(monkeypatch):
    assert len(torchruns()) >= 4
    for words in torchruns():
        arguments = get_args_parser().parse_args(words[1:])
        assert arguments.module
        assert arguments.training_script == "ddppo.train"
        for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "8"}.items():
            monkeypatch.setenv(name, value)
        settings = [
            each for each in arguments.training_script_args if not each.startswith("hydra.run.dir=/runs")
        ]
        prepared_arguments([each for each in settings if each != "resume=auto"])


def test_a_command_that_is_started_again_goes_on():
    for words in torchruns():
        assert "resume=auto" in words
        assert any(word.startswith("hydra.run.dir=") for word in words)
