# mypy: allow-untyped-defs, allow-untyped-calls
"""Wait for the import of torch and of trackers, then load the observer. Python imports this itself.

It runs in every Python process of the program, also in old versions, so it is small, uses the
standard library alone and raises nothing. Another `sitecustomize` behind it on the path is run at
the end, as Python would have done.
"""

import importlib.util
import os
import sys
import threading
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))
_OLDEST = (3, 11)
"""Python that `gonogo.trainer` needs."""
MODULES = (
    "torch", "torch.distributed.distributed_c10d", "torch.utils.data.dataloader",
    "torch.distributed.checkpoint.state_dict_saver", "torch._dynamo.trace_rules",
    "safetensors.torch",
    "torch.utils.tensorboard.writer", "tensorboardX.writer", "wandb.sdk.wandb_run", "trackio.run",
    "mlflow.tracking.fluent", "mlflow.tracking.client",
)  # fmt: skip
"""The modules that `gonogo.observer.hooks` knows."""


class _Loader:
    """Run a module by its own loader, and the hooks behind it."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _hook(module)


class _Finder:
    """Find a known module as the other finders do, and wrap its loader."""

    def __init__(self):
        self._local = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name not in MODULES or getattr(self._local, "busy", False):
            return None
        self._local.busy = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = None if finder is self or find is None else find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)
                    return spec
        finally:
            self._local.busy = False
        return None


def _hook(module):
    try:
        if "gonogo" not in sys.modules:  # of the gonogo that started the program, on no path
            spec = importlib.util.spec_from_file_location(
                "gonogo",
                os.path.join(_PACKAGE, "__init__.py"),
                submodule_search_locations=[_PACKAGE],
            )
            assert spec is not None
            assert spec.loader is not None
            package = sys.modules["gonogo"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(package)
        from gonogo.observer.hooks import install

        install(module)
    except Exception as error:  # noqa: BLE001 - the program must continue
        sys.stderr.write("gonogo: the program is not observed: " + repr(error) + "\n")


def _chain():
    """Run the `sitecustomize` that this one hides."""
    path = [row for row in sys.path if os.path.abspath(row or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _names = os.environ  # noqa: TID251 - the first module of a process; no settings are loaded yet
    _asked = _names.get("GONOGO_RUN_DIR") and _names.get("GONOGO_OBSERVE") != "0"
    if _asked and sys.version_info >= _OLDEST:
        sys.meta_path.insert(0, _Finder())
    _chain()
