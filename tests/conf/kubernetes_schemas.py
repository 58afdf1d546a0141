"""The part of the schemas of JobSet v1alpha2 and Kubeflow's trainer v1alpha1 that our manifests may use.

Sources: https://github.com/kubernetes-sigs/jobset api/jobset/v1alpha2/jobset_types.go,
https://github.com/kubeflow/trainer pkg/apis/trainer/v1alpha1/{trainjob,trainingruntime}_types.go, and Kubernetes' own
batch/v1 Job and core/v1 Pod. A schema is a type, a set of allowed values, [schema of the items], or a dict of fields,
of which those whose names end in ! are required. As by the API server's strict validation, unknown fields are errors.
"""

import re
from typing import Any

TEXTS = dict[str, str]  # labels and annotations, of any keys
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?)?")  # 500m, 4Gi
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

META = {"name": NAME, "namespace": NAME, "labels": TEXTS, "annotations": TEXTS}
RESOURCES = {
    "requests": {"cpu": QUANTITY, "memory": QUANTITY},
    "limits": {"cpu": QUANTITY, "memory": QUANTITY},
}
ENV = [{"name!": str, "value": str, "valueFrom": {"fieldRef": {"apiVersion": str, "fieldPath!": str}}}]
CONTAINER = {
    "name!": NAME, "image": str, "command": [str], "args": [str], "env": ENV, "resources": RESOURCES,
    "volumeMounts": [{"name!": NAME, "mountPath!": str, "readOnly": bool}],
}  # fmt: skip
POD = {
    "restartPolicy": {"Never", "OnFailure"},  # of a Job's pods
    "terminationGracePeriodSeconds": int,
    "containers!": [CONTAINER],
    "volumes": [{"name!": NAME, "persistentVolumeClaim": {"claimName!": str, "readOnly": bool}}],
}
JOB = {
    "completionMode": {"Indexed", "NonIndexed"}, "parallelism": int, "completions": int, "backoffLimit": int,
    "activeDeadlineSeconds": int, "template!": {"metadata": META, "spec": POD},
}  # fmt: skip
JOBSET_SPEC = {
    "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
    "successPolicy": {"operator!": {"All", "Any"}, "targetReplicatedJobs": [str]},
    "failurePolicy": {
        "maxRestarts": int,
        "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
    },
    "replicatedJobs": [{"name!": NAME, "replicas": int, "template!": {"metadata": META, "spec": JOB}}],
    "suspend": bool,
    "ttlSecondsAfterFinished": int,
}
KINDS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {"metadata!": META, "spec!": JOBSET_SPEC},
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): {
        "metadata!": META,
        "spec!": {
            "mlPolicy": {"numNodes": int, "torch": {"numProcPerNode": int}},
            "template!": {"metadata": META, "spec": JOBSET_SPEC},
        },
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "metadata!": META,
        "spec!": {
            "runtimeRef!": {
                "name!": str,
                "apiGroup": {"trainer.kubeflow.org"},
                "kind": {"TrainingRuntime", "ClusterTrainingRuntime"},
            },
            "trainer": {
                "image": str, "command": [str], "args": [str], "env": ENV, "numNodes": int, "numProcPerNode": int,
                "resourcesPerNode": RESOURCES,
            },
            "suspend": bool,
        },
    },
}  # fmt: skip


def faults(document: dict[str, Any]) -> list[str]:
    """Return what the API server would refuse of a manifest, [] for nothing."""
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in KINDS:
        return [f"no kind {kind}"]
    schema = {"apiVersion!": str, "kind!": str} | KINDS[kind]
    return list(_faults(document, schema, kind[1]))


def _faults(value: Any, schema: Any, where: str):
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield f"{where} is no mapping"
            return
        fields = {name.removesuffix("!"): each for name, each in schema.items()}
        yield from (f"{where} has no {n[:-1]}" for n in schema if n.endswith("!") and n[:-1] not in value)
        for name, each in value.items():
            if name in fields:
                yield from _faults(each, fields[name], f"{where}.{name}")
            else:
                yield f"{where} knows no {name}"
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, each in enumerate(value):
            yield from _faults(each, schema[0], f"{where}[{number}]")
    elif schema is TEXTS:
        if not isinstance(value, dict) or not all(isinstance(x, str) for x in (*value, *value.values())):
            yield f"{where} is no mapping of texts"
    elif isinstance(schema, set):
        if value not in schema:
            yield f"{where} is none of {sorted(schema)}: {value!r}"
    elif isinstance(schema, re.Pattern):
        if not isinstance(value, str) or not schema.fullmatch(value):
            yield f"{where} is not of the form {schema.pattern}: {value!r}"
    elif type(value) is not schema:
        yield f"{where} is no {schema.__name__}: {value!r}"
