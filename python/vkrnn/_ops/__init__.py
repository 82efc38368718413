"""Common parts of the functions: arguments, calls, results, layers and docstrings."""
