"""Fuzzing of every reader of files: `make fuzz` for hours, a short slice of each in the tests."""
