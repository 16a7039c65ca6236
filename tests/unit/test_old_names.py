"""What people may have written down under an old name says in one line what it is called now."""

from __future__ import annotations

import importlib

import pytest


def test_the_old_package_of_the_command_names_the_command():
    with pytest.raises(ModuleNotFoundError, match="is the command `outrider` now"):
        importlib.import_module("outrider.cli")
