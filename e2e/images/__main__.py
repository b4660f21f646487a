"""`python -m e2e.images`: build both images and print their names and archives."""

from __future__ import annotations

import sys

from e2e.cluster.errors import ClusterError
from e2e.images.build import build_all


def main() -> None:
    """Build; an error is one message and exit code 1."""
    try:
        images = build_all()
    except ClusterError as error:
        sys.exit(f"error: {error}")
    for image in (images.operator, images.runtime):
        print(image.name, image.archive)


if __name__ == "__main__":
    main()
