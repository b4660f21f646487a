"""How pip on this machine reaches its package index, in a form that can be lent to an image build."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster.commands import run

LENT: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
"""Settings that say how to reach an index. Others name directories of this machine or a person's taste."""
CERTIFICATES_IN_BUILD: Final = "/run/secrets/ca"


@dataclass(frozen=True)
class PipSettings:
    """The text of a pip.conf for the build, and the file of certificates on this machine that it refers to, if any."""

    text: str
    certificates: Path | None


def read_pip_settings() -> PipSettings:
    """Return the settings that pip uses here, from its files and its environment."""
    return parse_pip_settings(run(sys.executable, "-m", "pip", "config", "list"))


def parse_pip_settings(listing: str) -> PipSettings:
    """Read what `pip config list` prints: lines like ``global.index-url='...'``; those of the environment begin with ``:env:``."""
    found: dict[str, str] = {}
    for line in listing.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            found[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    lines = ["[global]", *(f"{name} = {found[name].strip()}" for name in LENT if name in found)]
    certificates = Path(found["cert"]) if "cert" in found else None
    if certificates:
        lines.append(f"cert = {CERTIFICATES_IN_BUILD}")
    return PipSettings("\n".join(lines) + "\n", certificates)
