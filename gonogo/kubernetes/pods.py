"""What may a pod, and what does it mount? The same for the control plane and for runs."""

from gonogo.kubernetes.cluster import SECRET, SECRETS_AT, USER, Object

POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def secret_volume(*keys: str) -> Object:
    """Return a volume with these keys of the Secret as files that only the pod's group reads."""
    items = [{"key": key, "path": key} for key in keys]
    return {
        "name": "secrets",
        "secret": {"secretName": SECRET, "defaultMode": 0o440, "items": items},
    }


def claim_volume(name: str, claim: str) -> Object:
    """Return a volume of a claim."""
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def empty_volume(name: str, size: str, *, memory: bool = False) -> Object:
    """Return a volume that ends with its pod."""
    kind = {"medium": "Memory"} if memory else {}
    return {"name": name, "emptyDir": {**kind, "sizeLimit": size}}


def mount(name: str, path: str, *, read_only: bool = False, sub: str | None = None) -> Object:
    """Return where a container finds a volume."""
    found: Object = {"name": name, "mountPath": path}
    if read_only:
        found["readOnly"] = True
    if sub is not None:
        found["subPath"] = sub
    return found


SECRETS_MOUNT = mount("secrets", SECRETS_AT, read_only=True)
TMP_MOUNT = mount("tmp", "/tmp")


def variables(values: dict[str, str | None]) -> list[Object]:
    """Return environment variables; those without a value are left out."""
    return [{"name": name, "value": value} for name, value in values.items() if value is not None]
