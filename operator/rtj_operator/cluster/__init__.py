"""The only room that talks to the Kubernetes API. It decides nothing: it reads, writes, and says precisely what the API server answered."""
