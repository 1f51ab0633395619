"""How does gonogo run in Kubernetes? Manifests, written from a few settings; pure text out."""
