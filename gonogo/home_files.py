"""By which files does a home say where its service is? Their writers and readers are apart."""

SERVICE_FILE = "service.json"
"""`{url, pid, host}`: of the service that began to listen last."""
REACHED_FILE = "reached.json"
"""`{v, url}`: where the nodes of a scheduler's runs reach it, as the home's worker does."""
