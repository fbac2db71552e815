"""Mistakes planted in the product, each with the test that sees it."""
