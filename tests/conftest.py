"""Markers that follow from where a test stands."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if pathlib.Path(item.path).is_relative_to(HERE / "op"):
            item.add_marker(pytest.mark.isa)
