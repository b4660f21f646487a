"""The operator's settings come from its environment; a wrong one is told by its variable and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtj_operator.decide.policy import policy_of
from rtj_operator.settings import ManifestPrefix, OperatorSettings, SettingsError, load_settings

NEEDED = {
    "RTJ_OPERATOR_HEARTBEAT_URL": "https://rtj-heartbeat.rtj-system.svc:8443",
    "RTJ_OPERATOR_HEARTBEAT_CA_FILE": "/etc/rtj/tls/ca.crt",
    "RTJ_OPERATOR_HEARTBEAT_CERT_FILE": "/etc/rtj/tls/tls.crt",
    "RTJ_OPERATOR_HEARTBEAT_KEY_FILE": "/etc/rtj/tls/tls.key",
}


def test_what_only_the_deployment_knows_is_enough() -> None:
    settings = load_settings({**NEEDED, "PATH": "/bin"})
    assert settings == OperatorSettings(
        heartbeat_url=NEEDED["RTJ_OPERATOR_HEARTBEAT_URL"],
        heartbeat_ca_file=Path("/etc/rtj/tls/ca.crt"),
        heartbeat_cert_file=Path("/etc/rtj/tls/tls.crt"),
        heartbeat_key_file=Path("/etc/rtj/tls/tls.key"),
    )


def test_every_kind_of_value_is_read() -> None:
    settings = load_settings(
        {
            **NEEDED,
            "RTJ_OPERATOR_NAMESPACES": "team-a, team-b,",
            "RTJ_OPERATOR_NODE_REMEDIATION": "Off",
            "RTJ_OPERATOR_LEASE_SECONDS": "30",
            "RTJ_OPERATOR_KUBECONFIG": "/home/me/.kube/config",
            "RTJ_OPERATOR_METRICS_PORT": "",
        }
    )
    assert (settings.namespaces, settings.node_remediation, settings.lease_seconds) == (("team-a", "team-b"), "Off", 30)
    assert (settings.kubeconfig, settings.metrics_port) == ("/home/me/.kube/config", 8080)


STORES = "RTJ_OPERATOR_MANIFEST_STORES"


def test_an_empty_list_is_empty_and_not_the_default() -> None:
    lists = ("RTJ_OPERATOR_NAMESPACES", "RTJ_OPERATOR_TRUSTED_NAMESPACES", STORES)
    settings = load_settings({**NEEDED, **dict.fromkeys(lists, "")})
    assert (settings.namespaces, settings.trusted_namespaces, settings.manifest_stores) == ((), (), ())
    assert policy_of(settings).trusted_namespaces == frozenset()
    assert policy_of(load_settings(NEEDED)).trusted_namespaces is None


def test_stores_that_may_be_read_are_read() -> None:
    text = (
        '[{"namespace": "a", "prefix": "s3://bucket/a/", "endpoint": "https://s3.example/"}, {"namespace": "b", "prefix": "s3://bucket"}]'
    )
    assert load_settings({**NEEDED, STORES: text}).manifest_stores == (
        ManifestPrefix("a", "s3://bucket/a", "https://s3.example"),
        ManifestPrefix("b", "s3://bucket"),
    )


WRONG = [
    pytest.param({"RTJ_OPERATOR_HEARTBEAT_URL": ""}, "RTJ_OPERATOR_HEARTBEAT_URL: not set", id="missing"),
    pytest.param(
        {"RTJ_OPERATOR_HEARTBEAT_URL": "http://x"}, "RTJ_OPERATOR_HEARTBEAT_URL: 'http://x' does not begin with https://", id="scheme"
    ),
    pytest.param({"RTJ_OPERATOR_LEASE_SECONDS": "4"}, "RTJ_OPERATOR_LEASE_SECONDS: '4' is not an integer from 5 to 300", id="too small"),
    pytest.param({"RTJ_OPERATOR_LEASE_SECONDS": "15s"}, "RTJ_OPERATOR_LEASE_SECONDS: '15s'", id="no number"),
    pytest.param({"RTJ_OPERATOR_LOG_LEVEL": "info"}, "one of DEBUG, INFO, WARNING, ERROR", id="a word that is not allowed"),
    pytest.param({STORES: "s3://bucket"}, f"{STORES}: is not JSON", id="stores that are not JSON"),
    pytest.param({STORES: "{}"}, f"{STORES}: is not a JSON list", id="stores that are no list"),
    pytest.param({STORES: '[{"namespace": "a"}]'}, f"{STORES}[0]: ManifestPrefix.prefix: missing", id="a store without a prefix"),
    pytest.param({STORES: '[{"namespace": "a", "prefix": "file:///x"}]'}, f"{STORES}[0].prefix: ", id="a store of files"),
    pytest.param({STORES: '[{"namespace": "a", "prefix": "s3://B"}]'}, "3 to 63 lower-case", id="a bucket that cannot be"),
    pytest.param({STORES: '[{"namespace": "A", "prefix": "s3://bucket"}]'}, f"{STORES}[0].namespace: 'A'", id="a namespace that cannot be"),
    pytest.param(
        {STORES: '[{"namespace": "a", "prefix": "s3://bucket", "endpoint": "s3.example"}]'}, "https://", id="an endpoint's scheme"
    ),
    pytest.param({STORES: '[{"namespace": "a", "prefix": "s3://bucket", "secret": "x"}]'}, f"{STORES}[0].secret: no such", id="no field"),
    pytest.param({"RTJ_OPERATOR_METRIC_PORT": "1"}, "RTJ_OPERATOR_METRIC_PORT: no such setting", id="a typing mistake"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG)
def test_a_wrong_setting_is_told_by_its_variable(changes: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings({**NEEDED, **changes})
    assert says in str(error.value)
