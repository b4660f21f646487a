"""Which addresses of a machine would collide with the cluster's."""

from __future__ import annotations

import pytest

from e2e.cluster.network import overlaps_cluster


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("172.31.7.4/20", True),
        ("172.16.0.0/12", True),
        ("10.244.3.1/24", True),
        ("10.96.0.10", True),
        ("10.0.0.0/8", True),
        ("10.97.0.0/16", False),
        ("172.30.0.1/16", False),
        ("192.168.1.5/24", False),
        ("fd00::2/64", False),
    ],
)
def test_an_address_collides_when_it_meets_a_range_of_the_cluster(address: str, expected: bool) -> None:
    assert overlaps_cluster(address) is expected
