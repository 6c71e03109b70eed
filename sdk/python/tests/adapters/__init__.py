"""Tests of the adapters, each with its framework."""
