"""What reads bytes or text of strangers, and everything that is thrown at it."""
