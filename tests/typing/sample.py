"""A sample program that mypy checks against the generated stubs; it also runs (tests/py/test_typing_sample.py)."""
