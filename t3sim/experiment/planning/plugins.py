"""Plugin files: Python that an experiment names, run once in a process to register policies and strategies."""

import importlib.util
import re
import sys
from collections.abc import Iterable

from t3sim.errors import ConfigError, PluginError, Problem


def load_plugins(plugins: Iterable[str]) -> None:
    """Run plugin files, each once in a process; what they register can then be named.

    Raises ``PluginError`` for whatever goes wrong in one.
    """
    for plugin in plugins:
        module_name = "t3sim_plugin_" + re.sub(r"\W", "_", plugin)
        if module_name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(module_name, plugin)
        if spec is None or spec.loader is None:
            raise ConfigError(Problem(plugin, 0, 0, "plugins", "is not a Python file"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no ``__pycache__`` in the user's folder
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            raise PluginError.of(error, "the plugin cannot be loaded", (plugin, 1)) from error
        finally:
            sys.dont_write_bytecode = before
