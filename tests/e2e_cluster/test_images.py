"""Images are rebuilt when, and only when, something that goes into them changed; and nothing of this machine goes into them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.images.base import find_mirror
from e2e.images.build import INPUTS, source_key
from e2e.images.oci import write_archive
from e2e.images.pip_settings import PipSettings, parse_pip_settings
from e2e.images.venv_mount import with_packages


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with all that goes into the images."""
    for name in INPUTS:
        file = tmp_path / name if "." in name or name.isupper() or name == "Dockerfile" else tmp_path / name / "code.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    return tmp_path


@pytest.mark.parametrize("file", ["Dockerfile", "pyproject.toml", "operator/code.py", "trainer_runtime/new.py"])
def test_a_changed_or_new_input_changes_the_key(tree: Path, file: str) -> None:
    before = source_key(tree)
    (tree / file).write_text("changed")
    assert source_key(tree) != before


@pytest.mark.parametrize("file", ["tests.py", "operator/__pycache__/code.cpython-311.pyc"])
def test_what_is_not_in_the_images_does_not_change_the_key(tree: Path, file: str) -> None:
    before = source_key(tree)
    (tree / file).parent.mkdir(exist_ok=True)
    (tree / file).write_text("changed")
    assert source_key(tree) == before


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        pytest.param("", PipSettings("[global]\n", None), id="nothing set"),
        pytest.param(
            "global.index-url='https://index.example/simple'\n:env:.timeout='60'\n",
            PipSettings("[global]\nindex-url = https://index.example/simple\ntimeout = 60\n", None),
            id="index and time-out",
        ),
        pytest.param(
            "global.cert='/etc/ssl/ours.pem'\n",
            PipSettings("[global]\ncert = /run/secrets/ca\n", Path("/etc/ssl/ours.pem")),
            id="certificates are lent as a file",
        ),
        pytest.param(":env:.find-links='/opt/wheels'\n", PipSettings("[global]\n", None), id="directories of this machine are not"),
    ],
)
def test_pip_in_a_build_gets_what_leads_to_the_index(listing: str, expected: PipSettings) -> None:
    assert parse_pip_settings(listing) == expected


def test_the_base_image_comes_from_the_first_apt_source_of_its_suite() -> None:
    targets = "http://a.example/debian/ trixie main\nhttp://b.example/debian/ bookworm main\nhttp://c.example/debian/ bookworm main\n"
    assert find_mirror(targets) == "http://b.example/debian/"


def test_a_machine_without_that_suite_is_told_so() -> None:
    with pytest.raises(ClusterError, match="no apt source of this machine has Debian bookworm"):
        find_mirror("http://a.example/ubuntu/ noble main\n")


def test_an_archive_is_the_same_for_the_same_input_and_every_digest_in_it_is_true(tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        write_archive(tmp_path / name, "localhost/pause:1", {"bin/busybox": b"program"}, ["/bin/busybox", "sleep", "9"], "amd64")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        contents = {member.name: file.read() for member in archive if (file := archive.extractfile(member)) is not None}
    blobs = {name.removeprefix("blobs/sha256/"): blob for name, blob in contents.items() if name.startswith("blobs/")}
    assert len(blobs) == 3
    assert all(hashlib.sha256(blob).hexdigest() == name for name, blob in blobs.items())
    (top,) = json.loads(contents["index.json"])["manifests"]
    assert top["annotations"]["io.containerd.image.name"] == "localhost/pause:1"
    assert top["digest"].removeprefix("sha256:") in blobs


def test_packages_are_mounted_read_only_behind_those_of_the_image_and_nothing_else_of_the_pod_changes() -> None:
    container = {"name": "trainer", "image": "x", "env": [{"name": "A", "value": "1"}]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]}}
    before = json.dumps(template)
    lent = with_packages(template, Path("/venv/site-packages"))
    assert json.dumps(template) == before
    assert lent["metadata"] == template["metadata"]
    (data, packages) = lent["spec"]["volumes"]
    assert data == {"name": "data", "emptyDir": {}}
    assert packages["hostPath"] == {"path": "/venv/site-packages", "type": "Directory"}
    (trainer,) = lent["spec"]["containers"]
    assert trainer["volumeMounts"] == [{"name": packages["name"], "mountPath": "/opt/host-packages", "readOnly": True}]
    environment = {entry["name"]: entry["value"] for entry in trainer["env"]}
    assert environment["A"] == "1"
    assert environment["PYTHONPATH"].split(":") == ["/usr/local/lib/python3.11/dist-packages", "/opt/host-packages"]
