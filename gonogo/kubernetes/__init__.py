"""How does gonogo run in Kubernetes? Manifests, written from a few settings; pure: objects out.

What a pod may is what docker-compose.yml lets a container: no root, no capability, nothing written
but in volumes. docs/how-to/clusters.md says how they are applied, and that nobody has done so yet.
"""
