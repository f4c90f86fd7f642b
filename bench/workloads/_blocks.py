"""The parts of a model that FSDP shards one by one, for a model that says nothing about them."""

from __future__ import annotations

from collections import Counter

from torch import nn

WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)
"""Containers that nobody calls, so that FSDP cannot gather their parameters in time: their children are looked at."""


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """The model's repeated layers in the order of its modules, which is usually that of its forward.

    They are the children of the outermost ModuleList or Sequential that occur at least twice there
    with one class, have children of their own and parameters, and share none with anything outside
    them (a shared parameter must stay with the root). Empty where a model repeats nothing.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    layers: list[nn.Module] = []
    within: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or any(
            f"{path}.".startswith(outer) for outer in within
        ):
            continue
        classes = Counter(type(child) for child in module)
        chosen = {
            f"{path}.{key}." if path else f"{key}.": child
            for key, child in module.named_children()
            if classes[type(child)] > 1 and any(child.children()) and not isinstance(child, WITHOUT_FORWARD)
        }
        for prefix, child in chosen.items():
            within.append(prefix)
            own = [names[id(parameter)] for parameter in child.parameters()]
            if own and all(name.startswith(prefix) for others in own for name in others):
                layers.append(child)
    return layers
