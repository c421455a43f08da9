"""Measurements that take minutes and a quiet machine, so they are no tests."""
