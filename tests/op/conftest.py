"""Makes op_harness importable: tests are collected without touching sys.path."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
