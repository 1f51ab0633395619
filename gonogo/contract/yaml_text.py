"""How is a plan's YAML read? As YAML 1.2 would: `on`, `off`, `yes`, `no` are words, keys unique.

PyYAML follows YAML 1.1, where `confirm: {on: […]}` has the key True, and keeps the last of two
equal keys; both would change a plan silently.
"""

import re
from typing import Any

import yaml

from gonogo.contract.errors import Rejected

_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 booleans and unique keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: second {key!r}")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:bool"]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))


def parse_yaml(text: str) -> Any:
    """Return the data in a YAML text.

    Raises:
        Rejected: not YAML, or a key that stands twice in one mapping.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise Rejected(f"not YAML: {' '.join(str(error).split())}") from error
