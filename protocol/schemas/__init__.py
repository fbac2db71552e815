"""The messages of every service; the generated code beside them is committed (`make proto`)."""
