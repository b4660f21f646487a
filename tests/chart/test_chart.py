"""What the chart renders: settings that the operator reads, the least rights, a restricted pod, and no value that is not known."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from e2e.cluster.errors import ClusterError
from rtj_operator.api import keys
from rtj_operator.api.crd.definition import NAME, custom_resource_definition
from rtj_operator.decide.policy import policy_of
from rtj_operator.settings import PREFIX, ManifestPrefix, load_settings
from tests.chart.rendering import CHART, KUBE_VERSION, Objects, helm, operator_environment, render, set_values

pytestmark = pytest.mark.api
"""Not for the API server, but for helm, which is built like it; the unit tier needs no Go."""

VALUE_FILES = sorted((CHART / "ci").glob("*.yaml"))


@pytest.fixture(scope="module")
def plain() -> Objects:
    return render()


@pytest.mark.parametrize("values", [None, *VALUE_FILES], ids=["defaults", *(file.stem for file in VALUE_FILES)])
def test_the_linter_finds_nothing(values: Path | None) -> None:
    helm("lint", "--strict", str(CHART), "--kube-version", KUBE_VERSION, *(["--values", str(values)] if values else []))


@pytest.mark.parametrize("values", [None, *VALUE_FILES], ids=["defaults", *(file.stem for file in VALUE_FILES)])
def test_the_operator_accepts_the_settings_that_the_chart_gives_it(values: Path | None) -> None:
    objects = render(*(["--values", str(values)] if values else []))
    (deployment,) = [name for kind, name in objects if kind == "Deployment"]
    settings = load_settings(operator_environment(objects, deployment))
    assert settings.heartbeat_url.startswith(f"https://{deployment}-heartbeat.rtj-system.svc:")


def test_every_setting_that_an_administrator_may_want_is_set_by_the_chart(plain: Objects) -> None:
    every = {name for name in operator_environment(plain) if name.startswith(PREFIX)}
    fields = set(load_settings(operator_environment(plain)).__dataclass_fields__)
    assert {name.removeprefix(PREFIX).lower() for name in every} == fields - {"kubeconfig"}


def test_values_reach_the_settings() -> None:
    settings = load_settings(operator_environment(render("--values", str(CHART / "ci" / "everything-values.yaml")), "training"))
    assert (settings.cordon_window_seconds, settings.cordon_max_in_window) == (300, 2)
    assert (settings.cordon_max_percent_in_window, settings.cordon_max_percent_standing) == (5, 10)
    assert (settings.trusted_namespaces, settings.log_level, settings.log_format) == (("team-a",), "DEBUG", "text")
    assert (settings.heartbeat_port, settings.metrics_port, settings.lease_seconds) == (9443, 9090, 30)
    assert settings.manifest_stores == (
        ManifestPrefix("team-a", "s3://checkpoints/team-a", "https://s3.example", "eu-1", "/etc/rtj/stores/0"),
        ManifestPrefix("team-b", "s3://checkpoints/team-b"),
    )


@pytest.mark.parametrize(("value", "trusted"), [("[]", frozenset()), ('["*"]', None), ('["team-a"]', frozenset({"team-a"}))])
def test_the_namespaces_that_are_trusted_are_those_that_are_listed(value: str, trusted: frozenset[str] | None) -> None:
    objects = render("--set-json", f"remediation.trustedNamespaces={value}")
    assert policy_of(load_settings(operator_environment(objects))).trusted_namespaces == trusted


def test_a_stores_secret_is_mounted_where_the_operator_looks_for_it() -> None:
    pod = render("--values", str(CHART / "ci" / "everything-values.yaml"))["Deployment", "training"]["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert mounts["store-0"] == "/etc/rtj/stores/0" and secrets["store-0"] == "reader"
    assert "store-1" not in mounts and "store-1" not in secrets


JOB_RIGHTS = {
    "resilienttrainingjobs": {"get", "list", "watch", "delete"},
    "resilienttrainingjobs/status": {"patch"},
    "pods": {"get", "list", "watch", "create", "delete"},
    "services": {"get", "create"},
    "events": {"create", "patch"},
}


def rights(role: dict[str, Any]) -> dict[str, set[str]]:
    """Return verbs by resource; no rule of ours gives one resource twice, except the lease's, whose name is limited."""
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_the_operator_has_the_rights_it_uses_and_no_others(plain: Objects) -> None:
    cluster = {**JOB_RIGHTS, "tokenreviews": {"create"}, "nodes": {"get", "list", "watch", "patch"}}
    assert rights(plain["ClusterRole", "rtj"]) == cluster
    assert rights(plain["Role", "rtj-lease"]) == {"leases": {"create", "get", "update"}}
    assert plain["Role", "rtj-lease"]["rules"][1]["resourceNames"] == ["rtj"]
    assert rights(plain["Role", "rtj-node-leases"]) == {"leases": {"list", "watch"}}
    assert plain["Role", "rtj-node-leases"]["metadata"]["namespace"] == "kube-node-lease"
    bound = {name for kind, name in plain if kind in ("RoleBinding", "ClusterRoleBinding")}
    assert bound == {"rtj", "rtj-lease", "rtj-node-leases"}


@pytest.mark.parametrize("mode", ["Avoid", "Observe", "Off"])
def test_without_cordon_there_is_no_right_to_write_nodes(mode: str) -> None:
    objects = render(*set_values(remediation__mode=mode))
    assert rights(objects["ClusterRole", "rtj"])["nodes"] == {"get", "list", "watch"}
    assert ("ValidatingAdmissionPolicy", "rtj-nodes") not in objects


@pytest.mark.parametrize("changed", ["nodeAccess=false", "mode=Avoid", "trustedNamespaces={a}"])
def test_another_say_about_nodes_starts_the_operator_anew(plain: Objects, changed: str) -> None:
    after = render("--set", f"remediation.{changed}")
    assert after["Deployment", "rtj"]["spec"]["template"] != plain["Deployment", "rtj"]["spec"]["template"]
    assert plain["Deployment", "rtj"]["spec"]["template"] == render()["Deployment", "rtj"]["spec"]["template"]


def test_with_named_namespaces_the_rights_over_jobs_are_there_only() -> None:
    objects = render("--values", str(CHART / "ci" / "minimal-rights-values.yaml"))
    assert rights(objects["ClusterRole", "rtj"]) == {"tokenreviews": {"create"}}
    text = helm("template", "rtj", str(CHART), "--kube-version", KUBE_VERSION, "--set", "watchNamespaces={a,b}")
    roles = [one for one in yaml.safe_load_all(text) if one and one["kind"] == "Role" and one["metadata"]["name"] == "rtj-jobs"]
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    assert all(rights(role) == JOB_RIGHTS for role in roles)


def test_the_pod_passes_the_restricted_standard(plain: Objects) -> None:
    pod = plain["Deployment", "rtj"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all(volume.keys() & {"secret", "emptyDir"} for volume in pod["volumes"])


def test_one_operator_runs_and_leaves_a_dead_node_soon(plain: Objects) -> None:
    spec = plain["Deployment", "rtj"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    tolerations = {one["key"]: one["tolerationSeconds"] for one in spec["template"]["spec"]["tolerations"]}
    assert tolerations == {"node.kubernetes.io/not-ready": 15, "node.kubernetes.io/unreachable": 15}


def test_the_crd_is_the_generated_one_and_is_kept(plain: Objects) -> None:
    crd = plain["CustomResourceDefinition", NAME]
    assert crd["spec"] == custom_resource_definition()["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in render(*set_values(crds__keep="false"))["CustomResourceDefinition", NAME]["metadata"]
    assert ("CustomResourceDefinition", NAME) not in render(*set_values(crds__enabled="false"))


def test_the_certificate_is_for_the_service_and_signed_by_the_ca(plain: Objects) -> None:
    data = plain["Secret", "rtj-heartbeat-tls"]["data"]
    leaf, ca = (x509.load_pem_x509_certificate(base64.b64decode(data[key])) for key in ("tls.crt", "ca.crt"))
    leaf.verify_directly_issued_by(ca)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert "rtj-heartbeat.rtj-system.svc" in names
    assert "ca.key" not in data


def test_an_existing_secret_is_mounted_and_none_is_made() -> None:
    objects = render(*set_values(heartbeat__tls__existingSecret="mine"))
    assert not [name for kind, name in objects if kind == "Secret"]
    volumes = objects["Deployment", "rtj"]["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == "mine"


def test_common_labels_and_annotations_are_on_every_object() -> None:
    objects = render("--values", str(CHART / "ci" / "everything-values.yaml"))
    for (kind, name), document in objects.items():
        assert document["metadata"]["labels"]["team"] == "platform", (kind, name)
        assert document["metadata"]["annotations"]["owner"] == "platform", (kind, name)


WRONG_VALUES = [
    pytest.param("remediation.mod=Avoid", "mod", id="a key with a typing mistake"),
    pytest.param("Image.tag=1", "Image", id="a top-level key that is not known"),
    pytest.param("remediation.mode=Maybe", "mode", id="a word that is not allowed"),
    pytest.param("remediation.breaker.maxInWindow=0", "maxInWindow", id="a number out of range"),
    pytest.param("heartbeat.port=80", "port", id="a port that needs a capability"),
    pytest.param("manifestStores[0].prefix=s3://b", "manifestStores", id="a store without a namespace"),
    pytest.param("manifestStores[0].bucket=b", "manifestStores", id="a store with an unknown key"),
    pytest.param("watchNamespaces={UPPER}", "watchNamespaces", id="a namespace that cannot be"),
]


@pytest.mark.parametrize(("wrong", "named"), WRONG_VALUES)
def test_a_wrong_value_is_refused_by_its_key(wrong: str, named: str) -> None:
    with pytest.raises(ClusterError, match=named):
        render("--set", wrong)


def flat(values: dict[str, Any], path: str = "") -> set[str]:
    """Return the dotted keys of values; an empty map or a list is a leaf."""
    found: set[str] = set()
    for key, value in values.items():
        inner = f"{path}{key}"
        found |= flat(value, f"{inner}.") if isinstance(value, dict) and value and inner != "resources" else {inner}
    return found


def test_the_schema_and_the_readme_know_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    readme = (CHART / "README.md").read_text()
    for key in flat(values):
        node = schema
        for part in key.split("."):
            node = node["properties"][part]
        last = key.split(".")[-1]
        assert re.search(rf"`[^`]*\b{last}`", readme), key


def test_the_fence_names_the_operators_account_and_keys(plain: Objects) -> None:
    policy = plain["ValidatingAdmissionPolicy", "rtj-nodes"]["spec"]
    assert "system:serviceaccount:rtj-system:rtj" in policy["matchConditions"][0]["expression"]
    rules = " ".join(rule["expression"] for rule in policy["validations"])
    for key in (keys.CORDONED_BY, keys.QUARANTINED_LABEL, keys.EXCLUDE_FROM_REMEDIATION):
        assert f"'{key}'" in rules
