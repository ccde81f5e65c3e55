"""Fabrics, the links between GPUs in simulated time: one file per fabric, which is registered because it lies here."""

from importlib import import_module
from pkgutil import iter_modules

from t3sim.fabric.interface import Fabric, fabric, fabrics

__all__ = ["Fabric", "fabric", "fabrics"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
