"""What must hold on a real Kubernetes with real faults. Every file here runs on any kind of test cluster, unless it says otherwise."""
