"""The project's images for the test cluster, built on this machine: `build_all()`, or `python -m e2e.images`."""

from e2e.images.build import ImageRef, Images, build_all

__all__ = ["ImageRef", "Images", "build_all"]
