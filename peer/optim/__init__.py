"""The optimizer: inner AdamW, and the outer step in exact integers."""
