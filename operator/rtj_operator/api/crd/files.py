"""The files that hold the generated CRD: the plain one, and the chart's template of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from rtj_operator.api.crd.definition import NAME, custom_resource_definition

ROOT: Final = Path(__file__).resolve().parents[4]
"""Of the repository. The files are made from a checkout; an installed package has none to check."""
PLAIN: Final = Path("crds/rtj.dev_resilienttrainingjobs.yaml")
CHART: Final = Path("charts/rtj/templates/crd.yaml")

_HEADER: Final = "# Generated from operator/rtj_operator/api by `make crds`. Change the models, not this file.\n"
_CHART_METADATA: Final = f"""metadata:
  name: {NAME}
  labels: {{{{- include "rtj.labels" . | nindent 4 }}}}
  {{{{- if or .Values.crds.keep .Values.commonAnnotations }}}}
  annotations:
    {{{{- if .Values.crds.keep }}}}
    helm.sh/resource-policy: keep
    {{{{- end }}}}
    {{{{- with .Values.commonAnnotations }}}}
    {{{{- toYaml . | nindent 4 }}}}
    {{{{- end }}}}
  {{{{- end }}}}
"""


class _Dumper(yaml.SafeDumper):
    """Writes no anchors: a value that stands in two places is written twice, as people expect of a manifest."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Kubernetes' YAML reader takes a bare y or n for a boolean, PyYAML's writer does not know that and would leave them bare.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))


def generated_files() -> dict[Path, str]:
    """Return the content of every generated file by its path from the repository's root."""
    document = custom_resource_definition()
    plain = _dump(document)
    spec = _dump({"spec": document["spec"]})
    head = _dump({"apiVersion": document["apiVersion"], "kind": document["kind"]})
    chart = f"{{{{- if .Values.crds.enabled }}}}\n{_HEADER}{head}{_CHART_METADATA}{spec}{{{{- end }}}}\n"
    return {PLAIN: _HEADER + plain, CHART: chart}


def differing_files(root: Path) -> list[Path]:
    """Return which generated files are missing below ``root`` or hold something else."""
    return [path for path, content in generated_files().items() if not _holds(root / path, content)]


def write_files(root: Path) -> list[Path]:
    """Write the files that differ, and return them."""
    differing = differing_files(root)
    for path in differing:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(generated_files()[path], encoding="utf-8")
    return differing


def _holds(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == content


def _dump(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
