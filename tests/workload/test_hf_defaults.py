"""Defaults of ``hf_families`` are those of the configuration classes of ``transformers``, where it is installed.

It is no dependency, not even of development: ``pip install transformers`` (without torch) into the environment and
``pytest tests/workload/test_hf_defaults.py`` run these.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from t3sim.workload.hf_families import DEFAULTS, FAMILIES, OWN_DEFAULTS, SAME_AS, family_of


def test_families_that_are_named_are_known() -> None:
    known = {*DEFAULTS, *FAMILIES}
    assert set(SAME_AS.values()) <= known
    assert set(OWN_DEFAULTS) <= known
    assert family_of("Qwen3-VL") == "qwen3_vl_text"


@pytest.fixture(scope="module")
def classes() -> Any:
    reason = "transformers is not installed: pip install transformers, and run this file again"
    pytest.importorskip("transformers", reason=reason)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", DEFAULTS)
def test_defaults_of_a_family(family: str, classes: Any) -> None:
    try:
        made = classes[family]
    except KeyError:
        pytest.skip(f"this version of transformers has no class of {family}")
    fields = {one.name: one.default for one in dataclasses.fields(made)}
    # What an alias hides is compared with the attribute that it represents.
    standing_for = {key: fields[key] if key in fields else getattr(made(), key, None) for key in DEFAULTS[family]
                    if "." not in key}  # fmt: skip
    assert {key: value for key, value in DEFAULTS[family].items() if "." not in key} == standing_for
