"""The model of a folder that `save_pretrained` wrote: its configuration, and no code or weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.workloads._adapters.configs import class_or_none
from bench.workloads._adapters.overriding import check_stored
from bench.workloads._adapters.spec import near

NOT_RUN = "code that lies in a folder is not run"


def is_folder(model: str) -> bool:
    """Whether what was typed means a folder, or a model of a hub, rather than a class."""
    return Path(model).expanduser().is_dir() or "/" in model or "-" in model


def from_folder(model: str) -> tuple[Path, Any, Any, dict[str, Any]]:
    """The config.json of a folder, the model class and configuration class it names, and its settings.

    UsageError says what in the file cannot be measured, or how to save a configuration where there is no folder.
    """
    folder = Path(model).expanduser().resolve()
    if not folder.is_dir():
        raise UsageError(
            f"--workload: there is no folder {model!r}. Nothing is downloaded: of a model on a hub, save the "
            f'configuration where there is a network (python -c "from transformers import AutoConfig; '
            f"AutoConfig.from_pretrained('NAME').save_pretrained('FOLDER')\") and name that folder, or name a class, "
            "such as transformers:BertForMaskedLM"
        )
    file = folder / "config.json"
    stored = _stored(file)
    config_class = _config_class(stored, file)
    if "quantization_config" in stored:
        raise UsageError(
            f"--workload: {file} has a quantization_config, and models are built in float32; remove it from the file, "
            "and use --precision"
        )
    found = _architecture(stored.get("architectures"), config_class, file)
    check_stored(config_class, stored, file)
    return file, found, config_class, {key: value for key, value in stored.items() if key != "architectures"}


def _stored(file: Path) -> dict[str, Any]:
    try:
        stored = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"--workload: {file} cannot be read: {error}; name a folder with a config.json") from error
    if not isinstance(stored, dict):
        what = "null" if stored is None else f"a {type(stored).__name__}"
        raise UsageError(f"--workload: {file} holds {what}, not the fields of a configuration; save it anew")
    return stored


def _config_class(stored: dict[str, Any], file: Path) -> Any:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = stored.get("model_type")
    if kind is None:
        raise UsageError(f'--workload: {file} has no model_type; add what the model is, such as "model_type": "bert"')
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UsageError(
            f"--workload: transformers {transformers.__version__} knows no model_type {kind!r} of {file}; "
            f"{near(str(kind), CONFIG_MAPPING.keys())} ({NOT_RUN})"
        )
    return CONFIG_MAPPING[kind]


def _architecture(named: Any, config_class: Any, file: Path) -> Any:
    """The model class that a file names first; without one, the model of the configuration without a head."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if named is None or named == []:
        found: Any = MODEL_MAPPING.get(config_class, None)
        found = found[0] if isinstance(found, tuple) else found
        if found is None:
            raise UsageError(f'--workload: {file} names no class; add "architectures": ["CLASS"] to it')
        return found
    if not isinstance(named, list) or not isinstance(named[0], str):
        raise UsageError(f"--workload: {file} has architectures {named!r}; it must be a list of names of classes")
    found = class_or_none(named[0])
    if found is None:
        raise UsageError(
            f"--workload: {file} has the architecture {named[0]!r}, which transformers does not have as a class that "
            f"can be built ({NOT_RUN}); write one it has"
        )
    if not issubclass(config_class, found.config_class):
        raise UsageError(
            f"--workload: {file} has the architecture {named[0]}, which is built from a {found.config_class.__name__}, "
            f"but its model_type is that of a {config_class.__name__}; correct one of them"
        )
    return found
