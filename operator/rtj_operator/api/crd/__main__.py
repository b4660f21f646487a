"""`python -m rtj_operator.api.crd --check | --write [--root DIR]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rtj_operator.api.crd.files import ROOT, differing_files, write_files


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when every generated file is as it should be, 1 when --check found one that is not."""
    parser = argparse.ArgumentParser(prog="python -m rtj_operator.api.crd", description="Generate the CRD from the models.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="say which generated files differ; exit 1 when one does")
    mode.add_argument("--write", action="store_true", help="write the generated files")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: the one this file is in)")
    options = parser.parse_args(arguments)
    if options.write:
        for path in write_files(options.root):
            print(f"wrote {path}")
        return 0
    differing = differing_files(options.root)
    for path in differing:
        print(f"{path} is not what the models say; run `make crds`", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
