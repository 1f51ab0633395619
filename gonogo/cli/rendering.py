"""How is gonogo put on a cluster? `gonogo render k8s` writes the manifests; nothing is applied."""

from pathlib import Path
from typing import Annotated

import typer

from gonogo.cli.output import err, out, print_json
from gonogo.cli.screen.group import Commands
from gonogo.kubernetes.cluster import Cluster
from gonogo.kubernetes.manifests import build_manifests
from gonogo.kubernetes.objects import write_yaml

_DEFAULT = Cluster()


def render_kubernetes(
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the files; default: stdout.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace.")] = _DEFAULT.namespace,
    api_image: Annotated[str, typer.Option(help="Image of the service.")] = _DEFAULT.api_image,
    worker_image: Annotated[str, typer.Option(help="Image of runs.")] = _DEFAULT.worker_image,
    database_url: Annotated[
        str | None, typer.Option(help="PostgreSQL without its password; default: SQLite.")
    ] = None,
    public_url: Annotated[str | None, typer.Option(help="Where people reach the service.")] = None,
    storage_class: Annotated[
        str | None, typer.Option(help="Of the run directories' volume (ReadWriteMany).")
    ] = None,
    storage: Annotated[str, typer.Option(help="Size of that volume.")] = _DEFAULT.storage,
    queue: Annotated[str, typer.Option(help="Kueue's LocalQueue.")] = _DEFAULT.queue,
    cluster_queue: Annotated[
        str, typer.Option(help="Kueue's ClusterQueue behind it.")
    ] = _DEFAULT.cluster_queue,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of a run.")] = _DEFAULT.nodes,
    devices: Annotated[int, typer.Option(min=1, help="GPUs of a node.")] = _DEFAULT.devices,
    run: Annotated[
        str | None, typer.Option(help="Run that the JobSet is for; default: a template.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write manifests for Kubernetes: service, monitoring, Kueue's queue, a run's JobSet."""
    cluster = Cluster(
        namespace=namespace,
        api_image=api_image,
        worker_image=worker_image,
        database_url=database_url,
        public_url=public_url,
        storage_class=storage_class,
        storage=storage,
        queue=queue,
        cluster_queue=cluster_queue,
        nodes=nodes,
        devices=devices,
        run=run,
    )
    files = build_manifests(cluster)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, objects in files.items():
            (folder / name).write_text(write_yaml(objects))
            err.print(f"wrote {folder / name}", highlight=False)
    if as_json:
        print_json({"folder": None if folder is None else str(folder), "files": files})
    elif folder is None:
        text = "".join(write_yaml(objects) for objects in files.values())
        out.file.write(text)


def register(app: typer.Typer) -> None:
    """Add the group of this module."""
    group = typer.Typer(
        name="render",
        cls=Commands,
        help="Write what a cluster needs; nothing is applied.",
        rich_markup_mode=None,
    )
    group.callback()(lambda: None)
    group.command("k8s")(render_kubernetes)
    app.add_typer(group)
