"""Everything that proves the whole product on a real Kubernetes.

The test cluster, its images, the scenarios, the demo. No part of the product."""
