"""The operator's rights, exactly: every test here runs it with these and no others, so a missing one fails a test."""

from __future__ import annotations

from typing import Any

USER = "rtj-operator-under-test"

RULES: list[tuple[str, list[str], list[str]]] = [
    ("rtj.dev", ["resilienttrainingjobs"], ["get", "list", "watch", "delete"]),
    ("rtj.dev", ["resilienttrainingjobs/status"], ["patch"]),
    ("", ["pods"], ["get", "list", "watch", "create", "delete"]),
    ("", ["services"], ["get", "create"]),
    ("", ["events"], ["create", "patch"]),
    ("", ["nodes"], ["get", "list", "watch", "patch"]),
    ("authentication.k8s.io", ["tokenreviews"], ["create"]),
]
"""API group, resources, verbs; cluster-wide."""
LEASE_RULES: list[tuple[str, list[str], list[str]]] = [("coordination.k8s.io", ["leases"], ["get", "create", "update"])]
"""In the operator's own namespace."""
NODE_LEASE_RULES: list[tuple[str, list[str], list[str]]] = [("coordination.k8s.io", ["leases"], ["list", "watch"])]
"""In kube-node-lease."""


def rules(rows: list[tuple[str, list[str], list[str]]]) -> list[dict[str, Any]]:
    """Return the rows as a role's rules."""
    return [{"apiGroups": [group], "resources": resources, "verbs": verbs} for group, resources, verbs in rows]


def cluster_objects() -> list[tuple[str, dict[str, Any]]]:
    """Return (collection path, object) of the cluster-wide role and of the one for node leases, with their bindings."""
    base = "/apis/rbac.authorization.k8s.io/v1"
    subject = [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER}
    node_reference = {**reference, "kind": "Role"}
    leases = f"{base}/namespaces/kube-node-lease"
    return [
        (f"{base}/clusterroles", {"metadata": {"name": USER}, "rules": rules(RULES)}),
        (f"{base}/clusterrolebindings", {"metadata": {"name": USER}, "roleRef": reference, "subjects": subject}),
        (f"{leases}/roles", {"metadata": {"name": USER}, "rules": rules(NODE_LEASE_RULES)}),
        (f"{leases}/rolebindings", {"metadata": {"name": USER}, "roleRef": node_reference, "subjects": subject}),
    ]


def lease_objects(namespace: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (collection path, object) of the role for the operator's own lease, with its binding."""
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    subject = [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": USER}
    return [
        (f"{base}/roles", {"metadata": {"name": USER}, "rules": rules(LEASE_RULES)}),
        (f"{base}/rolebindings", {"metadata": {"name": USER}, "roleRef": reference, "subjects": subject}),
    ]
