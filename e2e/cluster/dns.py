"""Names of Services and pods: CoreDNS as a process of this machine, on the bridge's address, which every pod has as its only resolver.

It answers for the cluster's domain alone. Any other name does not exist: pods cannot reach anything outside anyway.
"""

from __future__ import annotations

import socket
from typing import Final

from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.settings import CLUSTER_DOMAIN, DNS_PORT, HOST_ADDRESS

USER: Final = "system:coredns"
PERMISSIONS: Final = f"""apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: "{USER}"}}
rules:
- {{apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}}
- {{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: "{USER}"}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "{USER}"}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: "{USER}"}}]
"""


def start(plane: ControlPlane) -> None:
    """Start it and wait until it listens. Names of new Services appear within a second."""
    kubeconfig = plane.authority.kubeconfig("coredns", plane.server, USER)
    plane.kubectl("apply", "--filename=-", stdin=PERMISSIONS)
    corefile = plane.directory / "Corefile"
    corefile.write_text(f"""{CLUSTER_DOMAIN} in-addr.arpa {{
  bind {HOST_ADDRESS}
  errors
  kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 1
  }}
}}
. {{
  bind {HOST_ADDRESS}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
""")
    plane.start_program("coredns", ["-conf", str(corefile)])
    plane.wait_for("coredns", _listens)


def _listens() -> bool:
    try:
        with socket.create_connection((HOST_ADDRESS, DNS_PORT), timeout=1):
            return True
    except OSError:
        return False
