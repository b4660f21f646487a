"""What people and Prometheus see of the operator: metrics and health. Nothing here changes what the operator does."""
