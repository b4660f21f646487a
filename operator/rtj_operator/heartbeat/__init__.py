"""The only inbound edge: workers' beats over HTTPS, kept in memory. It knows no Kubernetes call and takes no decision."""
