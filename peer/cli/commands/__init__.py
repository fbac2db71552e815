"""What each command of `hetpeer` does, once its options are read. One module a command."""
